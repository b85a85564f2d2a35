"""Which pools have a loop, as they come and go."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress

import msgspec
import pytest

from autoscaler.kubernetes.objects import Pool
from autoscaler.kubernetes.pool_loop import PoolLoop
from autoscaler.kubernetes.pool_loops import PoolLoops
from autoscaler.kubernetes.reflector import Collection, Reflector, WatchTimings
from autoscaler.telemetry import Told
from tests.autoscaler.fake_kubernetes import FakeKubernetes
from tests.autoscaler.test_kubernetes_crashes import SPEC, World


class Pools:
    """A watch of one pool, which is deleted and made again after a minute."""

    async def get(self, path: str, **query: str) -> bytes:
        return msgspec.json.encode({"metadata": {"resourceVersion": "1"}, "items": [pool("old")]})

    async def lines(
        self, path: str, *, silence_s: float, **query: str
    ) -> AsyncGenerator[bytes, None]:
        await asyncio.sleep(60.0)
        yield msgspec.json.encode({"type": "DELETED", "object": pool("old")})
        yield msgspec.json.encode({"type": "ADDED", "object": pool("new")})
        await asyncio.sleep(1e9)


def pool(uid: str) -> object:
    return {"metadata": {"name": "chat", "uid": uid, "resourceVersion": "1"}, "spec": SPEC}


@pytest.mark.looptime
async def test_a_pool_that_is_made_again_under_its_name_has_a_loop_of_its_own() -> None:
    clock = asyncio.get_running_loop().time
    world = World(FakeKubernetes(SPEC, 2))
    reflector = Reflector(
        Pools(), Collection("/pools", Pool), WatchTimings(), monotonic_s=clock, random=lambda: 0.5
    )
    begun_at_s: list[float] = []

    def begin(name: str) -> PoolLoop:
        begun_at_s.append(clock())
        return world.started()

    loops = PoolLoops(
        reflector,
        begin,
        period_s=10.0,
        sleep=asyncio.sleep,
        random=lambda: 0.5,
        told=Told(clock, leads=lambda: True),
    )
    with suppress(TimeoutError):
        async with asyncio.timeout(90.0), asyncio.TaskGroup() as group:
            group.create_task(reflector.run(asyncio.sleep))
            group.create_task(loops.run(group))
    assert len(begun_at_s) == 2
    assert begun_at_s[1] >= 60.0
