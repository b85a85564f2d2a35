"""A count on top of a version that was overtaken: what a real API server refuses (409)."""

from dataclasses import dataclass

import pytest

from autoscaler.errors import ClusterRefused, StaleWrite
from autoscaler.kubernetes.api import KubernetesApi
from autoscaler.kubernetes.resource import Target
from autoscaler.kubernetes.targets import Targets
from autoscaler.kubernetes.wire import Json
from tests.kubernetes.conftest import Scene, SceneOf, eventually


class Leads:
    token = "somebody/1"

    def may_act(self) -> bool:
        return True


@dataclass
class CountingRefusals:
    """The same API, and how many writes were refused for their version."""

    api: KubernetesApi
    num_stale: int = 0

    async def get(self, path: str, **query: str) -> bytes:
        return await self.api.get(path, **query)

    async def patch(self, path: str, body: Json) -> bytes:
        try:
            return await self.api.patch(path, body)
        except StaleWrite:
            self.num_stale += 1
            raise


async def settled(scene_of: SceneOf) -> Scene:
    """The controllers have seen it, and write nothing more of their own."""
    scene = await scene_of(replicas=0)

    async def is_seen() -> bool:
        deployment = await scene.get(scene.deployment_path)
        return "observedGeneration" in deployment.get("status", {})

    await eventually(is_seen, "the deployment to be seen")
    return scene


async def test_a_version_that_alone_was_overtaken_is_read_again_and_the_count_written(
    scene_of: SceneOf,
) -> None:
    scene = await settled(scene_of)
    api, target = CountingRefusals(scene.api), Target(scene.name)
    targets = Targets(api, scene.namespace, Leads())
    known = await targets.scale(target)
    await scene.api.patch(scene.deployment_path, {"metadata": {"annotations": {"seen": "by"}}})
    written = await targets.set_count(target, known, 2)
    assert (written.spec.replicas, await scene.count()) == (2, 2)
    assert api.num_stale > 0


async def test_a_count_that_a_person_wrote_meanwhile_stays(scene_of: SceneOf) -> None:
    scene = await settled(scene_of)
    api, target = CountingRefusals(scene.api), Target(scene.name)
    targets = Targets(api, scene.namespace, Leads())
    known = await targets.scale(target)
    await scene.set_count(1)
    with pytest.raises(ClusterRefused, match="the count is 1, not 0"):
        await targets.set_count(target, known, 2)
    assert await scene.count() == 1
    assert api.num_stale == 1
