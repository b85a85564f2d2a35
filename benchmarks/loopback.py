"""An event loop whose connections lead to replicas that are a few lines of Python."""

import asyncio
import json
import socket
from typing import Any

import msgspec
import uvloop

from contracts.load import LOAD_PATH, ReplicaLoad

ANSWER = json.dumps(
    {
        "id": "chatcmpl-5f2d9f3f6a0e4c7fb1a2c3d4e5f60718",
        "object": "chat.completion",
        "created": 1730000000,
        "model": "mock",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "The quick brown fox rests. " * 3},
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": 200,
            "completion_tokens": 16,
            "total_tokens": 216,
            "prompt_tokens_details": {"cached_tokens": 128},
        },
    }
).encode()
PREFILL_S = 0.05
BUSY = ReplicaLoad(
    model="mock",
    is_ready=True,
    is_draining=False,
    num_running=0,
    num_waiting=0,
    queued_prompt_tokens=0,
    expected_output_tokens=0,
    kv_cache_usage=0.0,
    num_kv_blocks=1_000,
    block_size=16,
    prefill_tokens_per_s=4_000.0,
    decode_tokens_per_s=1_000.0,
)
encode_load = msgspec.json.Encoder().encode
EVENT = (
    b'data: {"id":"c","object":"chat.completion.chunk","choices":[{"delta":{"content":"x"}}]}\n\n'
)
LAST_EVENTS = (
    b'data: {"id":"c","choices":[],"usage":{"prompt_tokens":200,"completion_tokens":16,'
    b'"prompt_tokens_details":{"cached_tokens":128}}}\n\n'
    b"data: [DONE]\n\n"
)


def answer(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (
        len(body),
        body,
    )


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class Wire(asyncio.Transport):
    """The near end of a connection without a kernel."""

    def __init__(self, socket_: socket.socket) -> None:
        super().__init__({"socket": socket_})
        self.is_closed = False

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = True

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0


class ReplicaWire(Wire):
    """Answers what is written to it: at the loop's next turn, streams a chunk a turn."""

    def __init__(self, loop: "LoopbackLoop", protocol: Any) -> None:
        super().__init__(loop.socket)
        self._loop, self._protocol = loop, protocol
        self._num_left = 0

    def write(self, data: Any) -> None:
        if data.startswith(b"POST"):
            if self._loop.num_chunks:
                self._num_left = self._loop.num_chunks
                self._loop.call_soon(self._stream)
            elif self._loop.is_shedding:
                self._loop.call_later(PREFILL_S, self._protocol.data_received, answer(ANSWER))
            else:
                self._loop.call_soon(self._protocol.data_received, answer(ANSWER))
        elif self._loop.is_shedding and data.startswith(b"GET %b" % LOAD_PATH.encode()):
            self._loop.call_soon(self._protocol.data_received, answer(encode_load(BUSY)))
        elif data.startswith(b"GET /v1/models"):
            models = b'{"object":"list","data":[{"id":"mock"}]}'
            self._loop.call_soon(self._protocol.data_received, answer(models))
        else:
            self._loop.call_soon(self._protocol.data_received, answer(b"{}"))

    def _stream(self) -> None:
        if self._num_left == self._loop.num_chunks:
            head = b"content-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
            self._protocol.data_received(b"HTTP/1.1 200 OK\r\n" + head)
        self._num_left -= 1
        if self._num_left:
            self._protocol.data_received(chunk(EVENT))
            self._loop.call_soon(self._stream)
        else:
            self._protocol.data_received(chunk(LAST_EVENTS) + b"0\r\n\r\n")


class LoopbackLoop(uvloop.Loop):  # type: ignore[misc]  # a C class
    """Whose TCP connections lead to ``ReplicaWire``.  Those to the store's socket are real."""

    slowness = 1.0  # times that timers take longer

    def __init__(self, num_chunks: int, *, is_shedding: bool = False) -> None:
        super().__init__()
        self.num_chunks = num_chunks
        self.is_shedding = is_shedding  # its replicas take their time
        self.socket = socket.socket()

    async def create_connection(self, factory: Any, *_: object, **__: object) -> Any:
        protocol = factory()
        wire = ReplicaWire(self, protocol)
        protocol.connection_made(wire)
        return wire, protocol

    def call_later(
        self, delay: float, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        slowed = delay * self.slowness
        handle: asyncio.TimerHandle = super().call_later(slowed, callback, *args, context=context)
        return handle
