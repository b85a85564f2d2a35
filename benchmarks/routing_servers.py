"""The simulated fleet as servers: real HTTP on real ports, steps that take real time.

    python -m benchmarks.routing_servers NUM SPEED WARM_UP_S DURATION_S

Prints its ports.  A replica is ``routing_fleet``'s, block cache and steps, SPEED times as fast; a
token is a word.  To whoever asks it is one of ours (load reports, block events), and has what the
probes of vLLM's and SGLang's routers look for.  ``GET /fleet``, at any of them, tells what all have
counted between WARM_UP_S and DURATION_S after the first request.
"""

import asyncio
import json
import sys
from collections.abc import Callable, Sequence
from functools import partial

import httptools
import msgspec
import uvloop

from benchmarks.routing_fleet import (
    BLOCK_TOKENS,
    CACHE_TOKENS,
    BlockCache,
    Job,
    SimulatedReplica,
    StepTimes,
    load_report,
)
from benchmarks.routing_steps import stored_steps
from contracts.blocks import (
    BLOCKS_PATH,
    BlockChanges,
    BlockRemoved,
    BlockSnapshot,
    BlockStored,
    Change,
    PromptStored,
)
from contracts.load import LOAD_PATH

MODEL = "stand-in"
FLEET_PATH = "/fleet"
_LOOK_S = 0.05  # between two looks at what is outstanding
_KEY_MASK = (1 << 64) - 1
_JSON = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
_NOT_FOUND = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"
_STREAM = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)
_ANSWERS = {
    "/ready": "{}",
    "/health": "{}",
    "/v1/models": json.dumps({"object": "list", "data": [{"id": MODEL, "object": "model"}]}),
    "/get_model_info": json.dumps({"model_path": MODEL, "is_generation": True}),
    "/get_server_info": json.dumps({"model_path": MODEL, "served_model_name": MODEL}),
}


class Message(msgspec.Struct):
    role: str
    content: str


class Asked(msgspec.Struct):
    messages: list[Message]
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    cache_salt: str = ""

    def job(self, on_first: Callable[[Job], None], on_end: Callable[[Job], None]) -> Job:
        tokens = [token for m in self.messages for token in (m.role, *m.content.split())]
        told = self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
        keys = block_keys(self.cache_salt, tokens)
        return Job(keys, len(tokens), 1 if told is None else max(1, told), on_first, on_end)


class Counted(msgspec.Struct):
    """Of the whole fleet."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    num_requests: int = 0
    outstanding_tokens: list[float] = []  # of each replica, the mean over time


def block_keys(salt: str, tokens: Sequence[str]) -> list[int]:
    keys, link = [], hash(salt)
    for end in range(BLOCK_TOKENS, len(tokens) + 1, BLOCK_TOKENS):
        link = hash((link, *tokens[end - BLOCK_TOKENS : end]))
        keys.append(link & _KEY_MASK)
    return keys


class WallClock:
    """So many times as fast as the wall's.  What is late makes nothing after it late."""

    def __init__(self, speed: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._speed = speed
        self._due_s: float | None = None  # of the event that happens now

    def after(self, delay_s: float, call: Callable[[], None]) -> None:
        now_s = self._loop.time() if self._due_s is None else self._due_s
        due_s = now_s + delay_s / self._speed
        self._loop.call_at(due_s, self._happen, due_s, call)

    def _happen(self, due_s: float, call: Callable[[], None]) -> None:
        self._due_s = due_s
        try:
            call()
        finally:
            self._due_s = None


class Replica:
    """One of the fleet, and who follows its blocks."""

    def __init__(self, name: str, clock: WallClock, times: StepTimes) -> None:
        self._hashes: dict[int, BlockStored] = {}
        self._changes: list[Change] = []
        self._followers: list[asyncio.Transport] = []
        self._seq = 0
        cache = BlockCache(CACHE_TOKENS // BLOCK_TOKENS, self._stored, self._removed)
        self.simulated = SimulatedReplica(name, clock, cache, times)

    def follow(self, transport: asyncio.Transport) -> None:
        self._tell()
        self._followers.append(transport)
        snapshot = BlockSnapshot(seq=self._seq, blocks=tuple(self._hashes.values()))
        transport.write(_STREAM + _line(snapshot))

    def computed(self, job: Job, request_id: str) -> None:
        if job.blocks:
            self._changes.append(
                PromptStored(
                    request_id=request_id,
                    hash=f"{job.blocks[-1]:016x}",
                    num_tokens=job.prompt_tokens,
                    block_size=BLOCK_TOKENS,
                )
            )
        self._tell()

    def _stored(self, key: int, parent: int) -> None:
        stored = BlockStored(
            hash=f"{key:016x}", parent_hash=f"{parent:016x}", num_tokens=BLOCK_TOKENS
        )
        self._hashes[key] = stored
        self._changes.append(stored)

    def _removed(self, key: int) -> None:
        self._changes.append(BlockRemoved(hash=self._hashes.pop(key).hash))

    def _tell(self) -> None:
        if not self._changes:
            return
        self._seq += 1
        line = _line(BlockChanges(seq=self._seq, changes=tuple(self._changes)))
        self._changes.clear()
        for transport in self._followers:
            transport.write(line)


class Fleet:
    def __init__(self, num: int, speed: float, warm_up_s: float, duration_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        clock = WallClock(speed)
        times = stored_steps().times
        self.replicas = [Replica(f"replica-{number}", clock, times) for number in range(num)]
        self._window_s = (warm_up_s, duration_s)
        self._counted = Counted(outstanding_tokens=[0.0] * num)
        self._sums = [0] * num
        self._num_looks = 0
        self._began_s: float | None = None

    def arrive(self) -> None:
        if self._began_s is None:
            self._began_s = self._loop.time()
            self._look()

    def count(self, job: Job) -> None:
        if self._is_counting():
            self._counted.num_requests += 1
            self._counted.prompt_tokens += job.prompt_tokens
            self._counted.cached_tokens += job.cached_tokens

    def counted(self) -> Counted:
        sums, num = self._sums, max(1, self._num_looks)
        return msgspec.structs.replace(
            self._counted, outstanding_tokens=[tokens / num for tokens in sums]
        )

    def _is_counting(self) -> bool:
        assert self._began_s is not None
        from_s, to_s = self._window_s
        return from_s <= self._loop.time() - self._began_s <= to_s

    def _look(self) -> None:
        if self._is_counting():
            self._num_looks += 1
            for place, replica in enumerate(self.replicas):
                self._sums[place] += replica.simulated.outstanding_tokens
        self._loop.call_later(_LOOK_S, self._look)


class Connection(asyncio.Protocol):
    def __init__(self, replica: Replica, fleet: Fleet) -> None:
        self._replica = replica
        self._fleet = fleet
        self._parser = httptools.HttpRequestParser(self)

    def connection_made(  # type: ignore[override]  # uvloop's is a Transport in all but class
        self, transport: asyncio.Transport
    ) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:  # a router that tries gRPC first
            self._transport.close()

    def on_message_begin(self) -> None:
        self._path, self._request_id, self._body = "", "", b""

    def on_url(self, url: bytes) -> None:
        self._path = url.decode()

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"x-request-id":
            self._request_id = value.decode()

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        if self._path == "/v1/chat/completions":
            self._generate(msgspec.json.decode(self._body, type=Asked), self._request_id)
        elif self._path == BLOCKS_PATH:
            self._replica.follow(self._transport)
        elif self._path == LOAD_PATH:
            self._answer(msgspec.json.encode(load_report(self._replica.simulated, MODEL)))
        elif self._path == FLEET_PATH:
            self._answer(msgspec.json.encode(self._fleet.counted()))
        elif (known := _ANSWERS.get(self._path)) is not None:
            self._answer(known.encode())
        else:
            self._transport.write(_NOT_FOUND)

    def _answer(self, body: bytes) -> None:
        self._transport.write(_JSON % (len(body), body))

    def _generate(self, asked: Asked, request_id: str) -> None:
        self._fleet.arrive()
        self._replica.simulated.submit(asked.job(partial(self._first, request_id), self._end))

    def _first(self, request_id: str, job: Job) -> None:
        self._fleet.count(job)
        self._replica.computed(job, request_id)
        self._transport.write(_STREAM + _event(choices=[_choice("word", None)]))

    def _end(self, job: Job) -> None:
        rest = " word" * (job.output_tokens - 1)
        usage = {
            "prompt_tokens": job.prompt_tokens,
            "completion_tokens": job.output_tokens,
            "total_tokens": job.prompt_tokens + job.output_tokens,
            "prompt_tokens_details": {"cached_tokens": job.cached_tokens},
        }
        last = _event(choices=[_choice(rest, "length")]) + _event(choices=[], usage=usage)
        self._transport.write(last + _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")


def _choice(text: str, finish_reason: str | None) -> dict[str, object]:
    return {"index": 0, "delta": {"content": text}, "finish_reason": finish_reason}


def _event(**fields: object) -> bytes:
    body = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": MODEL, **fields}
    return _chunk(b"data: " + json.dumps(body).encode() + b"\n\n")


def _line(message: BlockSnapshot | BlockChanges) -> bytes:
    return _chunk(msgspec.json.encode(message) + b"\n")


def _chunk(payload: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(payload), payload)


async def serve(num: int, speed: float, warm_up_s: float, duration_s: float) -> None:
    loop = asyncio.get_running_loop()
    fleet = Fleet(num, speed, warm_up_s, duration_s)
    servers = [
        await loop.create_server(partial(Connection, replica, fleet), "127.0.0.1", 0, backlog=1024)
        for replica in fleet.replicas
    ]
    print(*(server.sockets[0].getsockname()[1] for server in servers), flush=True)
    await asyncio.gather(*(server.serve_forever() for server in servers))


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), *map(float, sys.argv[2:])))
