"""Follows the block events of every replica that has some, for as long as it is there."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from contracts.errors import UNDECODABLE
from gateway.errors import UpstreamError
from gateway.routing.block_index import Bit
from gateway.routing.pool import ReplicaPool
from gateway.routing.prefix_index import PrefixIndex, SequenceGap
from gateway.routing.replica import Replica

logger = logging.getLogger(__name__)

_LOOK_S: Final = 1.0  # between two looks at who is there, and before a stream is begun anew
_TICKS: Final = 10  # of the index between two looks: each takes a turn of the event loop

SetBit = Callable[[Bit], None]  # the replica's in the index, when it changes


class BlockReader(Protocol):
    """Of one kind of stream."""

    def can_read(self, replica: Replica) -> bool: ...

    async def read(self, replica: Replica, set_bit: SetBit) -> None:
        """Until the stream ends.  Raises UpstreamError, SequenceGap, and what ``msgspec`` does."""


class BlockStreams:
    def __init__(
        self, pool: ReplicaPool, index: PrefixIndex, readers: Sequence[BlockReader]
    ) -> None:
        self._pool = pool
        self._index = index
        self._readers = readers
        self._tasks: dict[Replica, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                self._look(group)
                for _ in range(_TICKS):
                    self._index.tick()
                    await asyncio.sleep(_LOOK_S / _TICKS)

    def _look(self, group: asyncio.TaskGroup) -> None:
        replicas = self._pool.replicas()
        present = {r: reader for r in replicas for reader in self._readers if reader.can_read(r)}
        for gone in self._tasks.keys() - present.keys():
            self._tasks.pop(gone).cancel()
        for replica, reader in present.items():
            task = self._tasks.get(replica)
            if replica.is_ready and (task is None or task.done()):
                self._tasks[replica] = group.create_task(self._follow(replica, reader))

    async def _follow(self, replica: Replica, reader: BlockReader) -> None:
        """Until the stream ends, whyever; then it is begun anew."""

        def set_bit(bit: Bit) -> None:
            if replica.endpoint.block_bit != bit:
                replica.endpoint.block_bit = bit
                self._pool.version += 1

        try:
            await reader.read(replica, set_bit)
        except (UpstreamError, SequenceGap, *UNDECODABLE) as error:
            extra = {"replica": replica.name, "error": str(error)}
            logger.info("block events ended", extra=extra)
        finally:
            set_bit(0)
