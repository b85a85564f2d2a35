"""Scaling that an upgrade switches on begins from what runs, and is not written over."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from autoscaler.kubernetes import paths
from autoscaler.kubernetes.api import KubernetesApi
from tests.kubernetes.conftest import eventually
from tests.kubernetes.release import Release
from tests.support.control_plane import ControlPlane
from tests.support.helm import helm

POOL = {"name": "a", "model": "m", "replicas": 3}
FIXED: dict[str, Any] = {"pools": [POOL], "billing": {"enabled": False}}
SCALED = {**FIXED, "pools": [{**POOL, "autoscaling": {"enabled": True, "maxReplicas": 8}}]}
UPGRADE = ("--disable-openapi-validation",)


class Pool:
    def __init__(self, api: KubernetesApi, namespace: str) -> None:
        self._api = api
        self._namespace = namespace
        deployments = paths.collection("apps/v1", namespace, "deployments")
        self._path = f"{deployments}/r-pandal-a"

    async def scale(self, count: int) -> None:
        """As an autoscaler does."""
        await self._api.patch(f"{self._path}/scale", {"spec": {"replicas": count}})

    async def until(self, count: int) -> set[str]:
        """The names of its pods, none of them about to go, when all that was ordered was done."""

        async def is_done() -> bool:
            found = msgspec.json.decode(await self._api.get(self._path))
            is_seen = found["status"].get("observedGeneration") == found["metadata"]["generation"]
            is_ordered = found["spec"]["replicas"] == count
            return is_seen and is_ordered and len(await self._pods()) == count

        await eventually(is_done, f"a count of {count}")
        return await self._pods()

    async def _pods(self) -> set[str]:
        body = await self._api.get(paths.pods(self._namespace), labelSelector="pandal.dev/pool=a")
        return {
            pod["metadata"]["name"]
            for pod in msgspec.json.decode(body)["items"]
            if "deletionTimestamp" not in pod["metadata"]
        }


@pytest.mark.parametrize("version", [3, 4])
async def test_no_replica_goes_when_scaling_is_switched_on(
    control_plane: ControlPlane, admin: KubernetesApi, tmp_path: Path, version: int
) -> None:
    namespace = f"switched-{version}"
    await admin.create("/api/v1/namespaces", {"metadata": {"name": namespace}})
    config = control_plane.kubeconfig("admin")
    release = Release(helm(version, tmp_path), config, tmp_path, namespace)
    pool = Pool(admin, namespace)
    await release.run("install", *UPGRADE, values=FIXED)
    first = await pool.until(3)
    await release.run("upgrade", *UPGRADE, values=SCALED)
    assert await pool.until(3) == first
    await pool.scale(5)
    more = await pool.until(5)
    changed = {**SCALED, "gateway": {"settings": {"maxWaiting": 77}}}
    await release.run("upgrade", *UPGRADE, values=changed)
    assert await pool.until(5) == more
    # What another one wrote is his, by server-side apply: whoever takes it away must say so.
    forced = ("--force-conflicts",) if version == 4 else ()
    await release.run("upgrade", *UPGRADE, *forced, values=FIXED)
    await pool.until(3)
    await release.run("uninstall")
