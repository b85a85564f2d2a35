"""A server that streams to a metronome, for measuring load generators: its latencies are known.

    python -m benchmarks.stepping_server TTFT_S GAP_S

Prints its port.  Answers a chat completion with as many chunks of a token as ``max_tokens`` (or
``max_completion_tokens``) says, the first TTFT_S after the request, then one each GAP_S: an
engine's steps.  A step that is late makes no later one late.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import httptools
import msgspec
import uvloop

DELTA = {"index": 0, "delta": {"content": "word "}, "logprobs": None, "finish_reason": None}
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
DONE = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
MODELS = b'{"object": "list", "data": [{"id": "default", "object": "model"}]}'


class Asked(msgspec.Struct):
    max_tokens: int | None = None
    max_completion_tokens: int | None = None

    @property
    def num_tokens(self) -> int:
        told = self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
        return 1 if told is None else told


def event(body: object) -> bytes:
    payload = f"data: {json.dumps(body)}\n\n".encode()
    return b"%x\r\n%b\r\n" % (len(payload), payload)


CHUNK = event({"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [DELTA]})


def usage_event(num_tokens: int) -> bytes:
    counts = {"prompt_tokens": 10, "completion_tokens": num_tokens, "total_tokens": 10 + num_tokens}
    return event({"id": "chatcmpl-1", "choices": [], "usage": counts})


class Steps(asyncio.Protocol):
    def __init__(self, ttft_s: float, gap_s: float) -> None:
        self._ttft_s = ttft_s
        self._gap_s = gap_s
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._body = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        if self._parser.get_method() == b"GET":  # /health and /v1/models
            head = (
                b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
            )
            self._transport.write(head % len(MODELS) + MODELS)
            return
        num_tokens = msgspec.json.decode(self._body, type=Asked).num_tokens
        self._body = b""
        self._end = usage_event(num_tokens) + DONE
        self._transport.write(HEAD)
        self._next_s = self._loop.time() + self._ttft_s
        self._loop.call_at(self._next_s, self._step, num_tokens)

    def _step(self, num_left: int) -> None:
        self._transport.write(CHUNK)
        if num_left == 1:
            self._transport.write(self._end)
            return
        self._next_s += self._gap_s
        self._loop.call_at(self._next_s, self._step, num_left - 1)


async def serve(ttft_s: float, gap_s: float) -> None:
    server = await asyncio.get_running_loop().create_server(
        lambda: Steps(ttft_s, gap_s), "127.0.0.1", 0, backlog=4096
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@contextmanager
def stepping_server(ttft_s: float, gap_s: float) -> Iterator[str]:
    """Its URL; a process of its own, for the length of the block."""
    command = [sys.executable, "-m", "benchmarks.stepping_server", str(ttft_s), str(gap_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


if __name__ == "__main__":
    uvloop.run(serve(float(sys.argv[1]), float(sys.argv[2])))
