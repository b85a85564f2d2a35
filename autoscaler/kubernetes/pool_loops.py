"""All ReplicaPools of a namespace: a loop begins with each and ends with it."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, NoReturn

from autoscaler.errors import AutoscalerError
from autoscaler.kubernetes.objects import Pool
from autoscaler.kubernetes.pool_loop import PoolLoop
from autoscaler.kubernetes.reflector import Reflector
from autoscaler.telemetry import Told

logger = logging.getLogger(__name__)

_SYNC_PERIOD_S: Final = 1.0


class _Pool(NamedTuple):
    """One that is deleted and made again under its name is another one."""

    name: str
    uid: str


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
        self._running: dict[_Pool, asyncio.Task[None]] = {}

    async def run(self, group: asyncio.TaskGroup) -> NoReturn:
        """Until cancelled."""
        while True:
            try:
                self._follow(group)
            except AutoscalerError as exc:  # what runs runs on, and is refused
                logger.debug("pools not known", extra={"error": str(exc)})
            except Exception:
                logger.exception("pools not followed")
            self._told.turned()
            await self._sleep(_SYNC_PERIOD_S)

    def _follow(self, group: asyncio.TaskGroup) -> None:
        """Raises ClusterRefused."""
        found = {_Pool(name, pool.metadata.uid) for name, pool in self._pools.items.items()}
        for gone in self._running.keys() - found:
            self._running.pop(gone).cancel()
            self._told.forget(gone.name)
        for new in found - self._running.keys():
            task = group.create_task(self._run_one(new), name=f"pool {new.name}")
            self._running[new] = task

    async def _run_one(self, followed: _Pool) -> NoReturn:
        loop = self._begin(followed.name)
        while True:
            await self._tick(loop, followed)
            await self._sleep(self._period_s * (0.9 + 0.2 * self._random()))

    async def _tick(self, loop: PoolLoop, followed: _Pool) -> None:
        """A tick that fails is logged, and the next one looks again."""
        name = followed.name
        try:
            pool = self._pools.items.get(name)
            if pool is None or pool.metadata.uid != followed.uid:
                return  # its loop is about to end
            report = await loop.tick(pool)
            if report is not None:
                self._told.note(name, report)
        except AutoscalerError as exc:
            logger.warning("tick failed", extra={"pool": name, "error": str(exc)})
        except Exception:
            logger.exception("tick failed", extra={"pool": name})
