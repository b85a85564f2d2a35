"""Follows the block events of every replica that has some, for as long as it is there."""

import asyncio
import logging
from typing import Final

import msgspec

from contracts.blocks import BLOCKS_PATH, BlockChanges, BlockSnapshot
from contracts.errors import UNDECODABLE
from gateway.errors import UpstreamError
from gateway.routing.pool import ReplicaPool
from gateway.routing.prefix_index import BlockFollower, PrefixIndex, SequenceGap
from gateway.routing.replica import Replica

logger = logging.getLogger(__name__)

_LOOK_S: Final = 1.0  # between two looks at who is there, and before a stream is begun anew
_TICKS: Final = 10  # of the index between two looks: each takes a turn of the event loop
_MAX_LINE_BYTES: Final = 256 * 1024 * 1024  # a snapshot of two million blocks, told in one
_LONG_LINE_BYTES: Final = 64 * 1024

_decoder = msgspec.json.Decoder(BlockSnapshot | BlockChanges)


class BlockStreams:
    def __init__(self, pool: ReplicaPool, index: PrefixIndex) -> None:
        self._pool = pool
        self._index = index
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
        present = {r for r in self._pool.replicas() if r.has_reported}
        for gone in self._tasks.keys() - present:
            self._tasks.pop(gone).cancel()
        for replica in present:
            task = self._tasks.get(replica)
            if replica.is_ready and (task is None or task.done()):
                self._tasks[replica] = group.create_task(self._follow(replica))

    async def _follow(self, replica: Replica) -> None:
        """Until the stream ends, whyever; then it is begun anew, with a snapshot."""
        follower = self._index.follower()
        try:
            await self._read(replica, follower)
        except (UpstreamError, SequenceGap, *UNDECODABLE) as error:
            extra = {"replica": replica.name, "error": str(error)}
            logger.info("block events ended", extra=extra)
        finally:
            follower.close()
            self._set_bit(replica, 0)

    async def _read(self, replica: Replica, follower: BlockFollower) -> None:
        response = replica.client.get(BLOCKS_PATH)
        try:
            await response.head
            if response.status != 200:
                raise UpstreamError(f"the replica answered {response.status}")
            rest: list[bytes] = []
            while chunk := await response.next_chunk():
                *lines, tail = chunk.split(b"\n")
                for line in lines:
                    whole = b"".join((*rest, line))
                    rest.clear()
                    if whole:
                        follower.take(_decoder.decode(whole))
                        self._set_bit(replica, follower.bit)
                    if len(whole) > _LONG_LINE_BYTES:
                        await asyncio.sleep(0)  # a part of a snapshot: others have their turn
                rest.append(tail)
                if sum(map(len, rest)) > _MAX_LINE_BYTES:
                    raise UpstreamError("the replica sent a line without end")
        finally:
            response.cancel()

    def _set_bit(self, replica: Replica, bit: int) -> None:
        if replica.endpoint.block_bit != bit:
            replica.endpoint.block_bit = bit
            self._pool.version += 1
