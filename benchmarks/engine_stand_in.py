"""A server that takes an engine's time and does none of its work, for what happens before one.

    python -m benchmarks.engine_stand_in [--pause-s 0.4 --every-s 5]

Prints its port.  Steps as a replica does: running answers first, then prompts, first come first
served, under a budget of tokens; a step's time is a line through its tokens.  It reports its load
in a replica's words.  Now and then it may stand still, as one does whose neighbour takes the host.
"""

import argparse
import asyncio
import json
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httptools
import msgspec
import uvloop

from benchmarks.local_fleet import MODEL
from benchmarks.stepping_server import DONE, HEAD, event
from contracts.load import LOAD_PATH, ReplicaLoad

STEP_S, PREFILL_S, DECODE_S = 0.001, 0.00008, 0.0002  # each step, token of a prompt, running answer
STEP_TOKENS, MAX_RUNNING = 512, 64
_BYTES_A_TOKEN = 4
_CHUNK = event(
    {"id": "c", "choices": [{"index": 0, "delta": {"content": "word "}, "finish_reason": None}]}
)


class Asked(msgspec.Struct):
    messages: msgspec.Raw
    max_tokens: int = 1


@dataclass(slots=True, eq=False)
class Job:
    transport: asyncio.Transport
    prompt_tokens: int
    num_left: int  # of them
    answer_tokens: int
    num_generated: int = 0


class StandIn:
    def __init__(self, pause_s: float = 0.0, every_s: float = 1.0) -> None:
        self._pause_s, self._every_s = pause_s, every_s
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Job] = deque()
        self._running: list[Job] = []
        self._is_stepping = False
        self._pause_at_s = self._loop.time() + every_s

    def submit(self, job: Job) -> None:
        self._waiting.append(job)
        if not self._is_stepping:
            self._is_stepping = True
            self._loop.call_soon(self._step)

    def load(self) -> ReplicaLoad:
        return ReplicaLoad(
            model=MODEL,
            is_ready=True,
            is_draining=False,
            num_running=len(self._running),
            num_waiting=len(self._waiting),
            queued_prompt_tokens=sum(job.num_left for job in self._waiting),
            expected_output_tokens=0,
            kv_cache_usage=0.0,
            num_kv_blocks=1_000,
            block_size=16,
            prefill_tokens_per_s=1.0 / PREFILL_S,
            decode_tokens_per_s=0.0,
        )

    def _step(self) -> None:
        for jobs in (self._waiting, self._running):
            for job in [job for job in jobs if job.transport.is_closing()]:
                jobs.remove(job)
        while self._waiting and len(self._running) < MAX_RUNNING:
            self._running.append(self._waiting.popleft())
        if not self._running:
            self._is_stepping = False
            return
        decoding = [job for job in self._running if not job.num_left]
        room = STEP_TOKENS - len(decoding)
        through: list[Job] = []
        for job in self._running:
            taken = min(room, job.num_left)
            job.num_left -= taken
            room -= taken
            if taken and not job.num_left:
                through.append(job)
        num_prefilled = STEP_TOKENS - len(decoding) - room
        duration_s = STEP_S + PREFILL_S * num_prefilled + DECODE_S * len(decoding)
        self._loop.call_later(
            duration_s + self._standstill_s(), self._retire, [*decoding, *through]
        )

    def _standstill_s(self) -> float:
        """If it is due."""
        now_s = self._loop.time()
        if now_s < self._pause_at_s:
            return 0.0
        self._pause_at_s = now_s + self._every_s
        return self._pause_s

    def _retire(self, jobs: list[Job]) -> None:
        for job in jobs:
            if job.transport.is_closing():
                continue
            job.num_generated += 1
            # As a replica does, whose head says that it has begun.
            job.transport.write(HEAD + _CHUNK if job.num_generated == 1 else _CHUNK)
            if job.num_generated == job.answer_tokens:
                job.transport.write(_end_of(job))
                self._running.remove(job)
        self._step()


def _end_of(job: Job) -> bytes:
    usage = {
        "prompt_tokens": job.prompt_tokens,
        "completion_tokens": job.num_generated,
        "total_tokens": job.prompt_tokens + job.num_generated,
    }
    return event({"id": "c", "choices": [], "usage": usage}) + DONE


class Connection(asyncio.Protocol):
    def __init__(self, engine: StandIn) -> None:
        self._engine = engine
        self._parser = httptools.HttpRequestParser(self)
        self._url = self._body = b""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self._url, self._body = url, b""

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        if self._parser.get_method() == b"GET":
            self._answer(200, self._document())
        elif self._url.endswith(b"/abort"):
            self._answer(404, {})
        else:
            asked = msgspec.json.decode(self._body, type=Asked)
            num_tokens = max(1, len(bytes(asked.messages)) // _BYTES_A_TOKEN)
            self._engine.submit(Job(self._transport, num_tokens, num_tokens, asked.max_tokens))

    def _document(self) -> object:
        if self._url.decode() == LOAD_PATH:
            return self._engine.load()
        return {"object": "list", "data": [{"id": MODEL, "object": "model"}]}

    def _answer(self, status: int, document: object) -> None:
        body = msgspec.json.encode(document)
        head = b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        self._transport.write(head % (status, len(body)) + body)


async def serve(pause_s: float, every_s: float) -> None:
    engine = StandIn(pause_s, every_s)
    server = await asyncio.get_running_loop().create_server(
        lambda: Connection(engine), "127.0.0.1", 0, backlog=4096
    )
    print(json.dumps(server.sockets[0].getsockname()[1]), flush=True)
    await server.serve_forever()


@contextmanager
def engine_stand_in(pause_s: float = 0.0, every_s: float = 1.0) -> Iterator[str]:
    """Its URL; a process of its own, for the length of the block."""
    how = ["--pause-s", str(pause_s), "--every-s", str(every_s)]
    command = [sys.executable, "-m", "benchmarks.engine_stand_in", *how]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pause-s", type=float, default=0.0)
    parser.add_argument("--every-s", type=float, default=1.0)
    given = parser.parse_args()
    uvloop.run(serve(given.pause_s, given.every_s))
