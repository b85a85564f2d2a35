"""All ReplicaPools of a namespace: a loop begins with each and ends with it."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, NoReturn

from autoscaler.errors import AutoscalerError
from autoscaler.kubernetes.objects import Pool
from autoscaler.kubernetes.pool_loop import PoolLoop
from autoscaler.kubernetes.reflector import Reflector
from autoscaler.telemetry import Told

logger = logging.getLogger(__name__)

_SYNC_PERIOD_S: Final = 1.0


class PoolLoops:
    def __init__(
        self,
        pools: Reflector[Pool],
        begin: Callable[[str], PoolLoop],
        *,
        period_s: float,
        sleep: Callable[[float], Awaitable[None]],
        random: Callable[[], float],
        told: Told,
    ) -> None:
        self._pools = pools
        self._begin = begin
        self._period_s = period_s
        self._sleep = sleep
        self._random = random
        self._told = told
        self._running: dict[str, asyncio.Task[None]] = {}

    async def run(self, group: asyncio.TaskGroup) -> NoReturn:
        """Until cancelled."""
        while True:
            try:
                names = set(self._pools.items)
            except AutoscalerError:  # not known for now: what runs runs on, and is refused
                names = set(self._running)
            for name in self._running.keys() - names:
                self._running.pop(name).cancel()
                self._told.forget(name)
            for name in names - self._running.keys():
                self._running[name] = group.create_task(self._run_one(name), name=f"pool {name}")
            self._told.turned()
            await self._sleep(_SYNC_PERIOD_S)

    async def _run_one(self, name: str) -> NoReturn:
        loop = self._begin(name)
        while True:
            await self._tick(loop, name)
            await self._sleep(self._period_s * (0.9 + 0.2 * self._random()))

    async def _tick(self, loop: PoolLoop, name: str) -> None:
        """A tick that fails is logged, and the next one looks again."""
        try:
            pool = self._pools.items.get(name)
            report = None if pool is None else await loop.tick(pool)
            if report is not None:
                self._told.note(name, report)
        except AutoscalerError as exc:
            logger.warning("tick failed", extra={"pool": name, "error": str(exc)})
        except Exception:
            logger.exception("tick failed", extra={"pool": name})
