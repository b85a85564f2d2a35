"""Reads the block events that vLLM and SGLang publish over ZeroMQ."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gateway.errors import UpstreamError
from gateway.routing.block_streams import SetBit
from gateway.routing.engine_blocks import EngineBlocks
from gateway.routing.engine_events import decode_events
from gateway.routing.foreign_metrics import Engine
from gateway.routing.prefix_index import PrefixIndex
from gateway.routing.prompt_tokens import PromptTokens
from gateway.routing.replica import Replica
from gateway.upstream.zmtp import ZmtpSocket

_CONNECT_S: Final = 5.0
_NUM_BYTES: Final = 8  # of a message's number
_END_OF_REPLAY: Final = b"\xff" * _NUM_BYTES


@dataclass(frozen=True, slots=True)
class Publisher:
    host: str
    port: int
    replay_port: int | None = None  # None: what was stored before is not told


class EngineStreams:
    def __init__(self, index: PrefixIndex, publishers: Mapping[str, Publisher]) -> None:
        """``publishers``: by the replica's name."""
        self._index = index
        self._publishers = publishers

    def can_read(self, replica: Replica) -> bool:
        known = replica.engine in (Engine.VLLM, Engine.SGLANG)
        return known and replica.name in self._publishers

    async def read(self, replica: Replica, set_bit: SetBit) -> None:
        """As ``BlockReader``."""
        publisher = self._publishers[replica.name]
        socket = await ZmtpSocket.connect(publisher.host, publisher.port, b"SUB", _CONNECT_S)
        blocks = EngineBlocks(self._index)
        tokens = PromptTokens(replica.client, blocks)
        try:
            socket.subscribe()
            replica.prompt_tokens = tokens
            if publisher.replay_port is not None:
                await self._replay(publisher.host, publisher.replay_port, blocks)
            set_bit(blocks.bit)
            while True:
                *_, number, payload = await _message(socket)
                seq = int.from_bytes(number, "big")
                if blocks.next_seq is None or seq >= blocks.next_seq:  # else it was replayed
                    blocks.take(seq, decode_events(payload))
                    set_bit(blocks.bit)
        finally:
            replica.prompt_tokens = None
            blocks.close()
            await tokens.close()
            await socket.close()

    async def _replay(self, host: str, port: int, blocks: EngineBlocks) -> None:
        socket = await ZmtpSocket.connect(host, port, b"REQ", _CONNECT_S)
        try:
            socket.send([b"", bytes(_NUM_BYTES)])
            while True:
                *_, number, payload = await _message(socket)
                if number == _END_OF_REPLAY:
                    return
                blocks.take(int.from_bytes(number, "big"), decode_events(payload))
        finally:
            await socket.close()


async def _message(socket: ZmtpSocket) -> list[bytes]:
    """That ends in a number and a batch."""
    parts = await socket.receive()
    if len(parts) < 2 or len(parts[-2]) != _NUM_BYTES:
        raise UpstreamError("The publisher sends something else than block events.")
    return parts
