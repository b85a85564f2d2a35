"""An engine's block events, published as libzmq does it: ZMTP 3, and batches as vLLM encodes them.

The bytes of greeting and handshake are libzmq 4.3's.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import msgspec

GREETING = b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\x01NULL" + bytes(48)
READY = b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03PUB"
END_OF_REPLAY = b"\xff" * 8


class StoredEvent(msgspec.Struct, omit_defaults=True, tag="BlockStored"):
    block_hashes: list[int | bytes]
    parent_block_hash: int | bytes | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[list[str] | None] | None = None
    group_idx: int | None = None


class RemovedEvent(msgspec.Struct, omit_defaults=True, tag="BlockRemoved"):
    block_hashes: list[int | bytes]
    medium: str | None = None


class ClearedEvent(msgspec.Struct, tag="AllBlocksCleared"):
    pass


Published = StoredEvent | RemovedEvent | ClearedEvent


def batch(*events: Published) -> bytes:
    return msgspec.msgpack.encode({"ts": 1.5, "events": events, "data_parallel_rank": 0})


def frame(flags: int, body: bytes) -> bytes:
    if len(body) < 256:
        return bytes((flags, len(body))) + body
    return bytes((flags | 2,)) + len(body).to_bytes(8, "big") + body


def message(*parts: bytes) -> bytes:
    return b"".join(map(frame, [1] * (len(parts) - 1) + [0], parts))


@dataclass
class Publisher:
    port: int = 0
    replay_port: int = 0
    greeting: bytes = GREETING
    batches: list[bytes] = field(default_factory=list)  # published so far; all are replayed
    num_replays: int = 0
    _subscribers: list[asyncio.StreamWriter] = field(default_factory=list)
    _served: set[asyncio.Task[None]] = field(default_factory=set)
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)

    @property
    def num_subscribers(self) -> int:
        return len(self._subscribers)

    def publish(self, payload: bytes, *, is_lost: bool = False) -> None:
        seq = len(self.batches).to_bytes(8, "big")
        self.batches.append(payload)
        for writer in () if is_lost else self._subscribers:
            writer.write(message(b"", seq, payload))

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._begin(writer, self._serve(reader, writer))

    def accept_replay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._begin(writer, self._replay(reader, writer))

    async def stop(self) -> None:
        for task in self._served:
            task.cancel()
        await asyncio.gather(*self._served, return_exceptions=True)
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.sleep(0)  # only then are their sockets closed

    def _begin(self, writer: asyncio.StreamWriter, serving: Coroutine[None, None, None]) -> None:
        self._writers.add(writer)
        self._served.add(asyncio.create_task(serving))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._greet(reader, writer)
        assert await _read_frame(reader) == (0, b"\x01"), "subscribed to all"
        self._subscribers.append(writer)
        await reader.read(1)
        self._subscribers.remove(writer)
        writer.close()

    async def _replay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._greet(reader, writer)
        assert await _read_frame(reader) == (1, b"")
        _, start = await _read_frame(reader)
        self.num_replays += 1
        for seq in range(int.from_bytes(start, "big"), len(self.batches)):
            writer.write(message(b"", seq.to_bytes(8, "big"), self.batches[seq]))
        writer.write(message(b"", END_OF_REPLAY, b""))
        await reader.read(1)
        writer.close()

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(self.greeting)
        theirs = await reader.readexactly(64)
        assert theirs[:1] + theirs[9:16] == b"\xff\x7f\x03\x00NULL"
        writer.write(READY)
        flags, body = await _read_frame(reader)
        assert (flags, body[:6]) == (4, b"\x05READY")


async def _read_frame(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    flags, size = await reader.readexactly(2)
    return flags, await reader.readexactly(size)


@asynccontextmanager
async def publishing(batches: Sequence[bytes] = ()) -> AsyncIterator[Publisher]:
    publisher = Publisher(batches=list(batches))
    events = await asyncio.start_server(publisher.accept, "127.0.0.1", 0)
    replays = await asyncio.start_server(publisher.accept_replay, "127.0.0.1", 0)
    publisher.port = events.sockets[0].getsockname()[1]
    publisher.replay_port = replays.sockets[0].getsockname()[1]
    try:
        yield publisher
    finally:
        for server in (events, replays):
            server.close()
        await publisher.stop()
