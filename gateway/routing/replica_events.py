"""Reads the block events of our own replicas."""

import asyncio
from typing import Final

import msgspec

from contracts.blocks import BLOCKS_PATH, BlockChanges, BlockSnapshot
from gateway.errors import UpstreamError
from gateway.routing.block_streams import SetBit
from gateway.routing.prefix_index import PrefixIndex
from gateway.routing.replica import Replica

_MAX_LINE_BYTES: Final = 256 * 1024 * 1024  # a snapshot of two million blocks, told in one
_LONG_LINE_BYTES: Final = 64 * 1024

_decoder = msgspec.json.Decoder(BlockSnapshot | BlockChanges)


class ReplicaEvents:
    def __init__(self, index: PrefixIndex) -> None:
        self._index = index

    def can_read(self, replica: Replica) -> bool:
        return replica.has_reported

    async def read(self, replica: Replica, set_bit: SetBit) -> None:
        """As ``BlockReader``; it begins with a snapshot."""
        follower = self._index.follower()
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
                        set_bit(follower.bit)
                    if len(whole) > _LONG_LINE_BYTES:
                        await asyncio.sleep(0)  # a part of a snapshot: others have their turn
                rest.append(tail)
                if sum(map(len, rest)) > _MAX_LINE_BYTES:
                    raise UpstreamError("the replica sent a line without end")
        finally:
            response.cancel()
            follower.close()
