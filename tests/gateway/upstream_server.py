"""A scriptable stand-in for a replica: it says what a test tells it to, byte for byte.

Runs an event loop of its own in a thread, so that synchronous and asynchronous tests may use it.
"""

import asyncio
import contextlib
import json
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from contracts.load import LOAD_PATH
from contracts.tokenizer import TOKENIZER_PATH, TokenizerFile

MODEL = "model-a"
BEGAN_UNIX_S = 1_700_000_000
PROMPT_TOKENS = 11
CACHED_TOKENS = 4
SSE_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)


@dataclass
class Received:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def document(self) -> dict[str, Any]:
        return dict(json.loads(self.body))


@dataclass
class Generation:
    """One generation request, and the connection it came on."""

    received: Received
    writer: asyncio.StreamWriter
    completion_tokens: int = 0
    is_answered: bool = False  # all of it has been handed to the connection
    is_stopped: asyncio.Event = field(default_factory=asyncio.Event)  # aborted, or client gone

    @property
    def usage(self) -> dict[str, Any]:
        return {
            "prompt_tokens": PROMPT_TOKENS,
            "completion_tokens": self.completion_tokens,
            "total_tokens": PROMPT_TOKENS + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": CACHED_TOKENS},
        }

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def start_stream(self) -> None:
        await self.send(SSE_HEAD)

    async def chunk(self, data: bytes) -> None:
        await self.send(b"%x\r\n%b\r\n" % (len(data), data))

    async def event(self, document: object) -> None:
        await self.chunk(b"data: " + json.dumps(document).encode() + b"\n\n")

    async def word(self, text: str = "word ") -> None:
        self.completion_tokens += 1
        delta = {"index": 0, "delta": {"content": text}, "finish_reason": None}
        await self.event({"id": "c", "model": MODEL, "choices": [delta]})

    async def end_stream(self) -> None:
        await self.event({"id": "c", "model": MODEL, "choices": [], "usage": self.usage})
        await self.chunk(b"data: [DONE]\n\n")
        await self.send(b"0\r\n\r\n")
        self.is_answered = True

    async def answer(
        self, status: int, body: bytes, content_type: str = "application/json"
    ) -> None:
        await self.send(
            b"HTTP/1.1 %d X\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n%b"
            % (status, content_type.encode(), len(body), body)
        )
        self.is_answered = True

    def reset(self) -> None:
        self.writer.transport.abort()

    async def pause(self, seconds: float) -> bool:
        """False if the generation was stopped meanwhile."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.is_stopped.wait(), seconds)
        return not self.is_stopped.is_set()


Behaviour = Callable[[Generation], Awaitable[None]]


def words(count: int, pause_s: float = 0.0) -> Behaviour:
    """``count`` words, one token each, streamed or whole as asked for."""

    async def behave(generation: Generation) -> None:
        if generation.received.document.get("stream"):
            await generation.start_stream()
            for _ in range(count):
                await generation.word()
                if pause_s and not await generation.pause(pause_s):
                    return
            await generation.end_stream()
            return
        for _ in range(count):
            generation.completion_tokens += 1
            if pause_s and not await generation.pause(pause_s):
                return
        message = {"role": "assistant", "content": "word " * count}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        document = {
            "id": "c",
            "object": "chat.completion",
            "created": 0,
            "model": MODEL,
            "choices": [choice],
            "usage": generation.usage,
        }
        await generation.answer(200, json.dumps(document).encode())

    return behave


def held_words(count: int, may_end: threading.Event) -> Behaviour:
    """``words``, of which the first, where streamed, comes at once, and the others when told."""

    async def behave(generation: Generation) -> None:
        is_stream = generation.received.document.get("stream")
        if is_stream:
            await generation.start_stream()
            await generation.word()
        while not may_end.is_set():
            if not await generation.pause(0.005):
                return
        if not is_stream:
            await words(count)(generation)
            return
        for _ in range(count - 1):
            await generation.word()
        await generation.end_stream()

    return behave


class Upstream:
    def __init__(self, model: str = MODEL) -> None:
        self.model = model
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="upstream", daemon=True)
        self._listening = threading.Event()
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self.reset()

    def reset(self) -> None:
        """Back to a well-behaved replica that has seen nothing."""
        self.behaviour: Behaviour = words(3)
        self.adapters: tuple[str, ...] = ()  # of its model
        self.is_ready = True
        self.knows_ready = True
        self.knows_abort = True
        self.load: dict[str, Any] | None = None  # its load report; None: it knows none
        self.load_status = 200
        self.num_load_reports = 0
        self.holds_load = False  # a report is asked for, and does not come
        self.metrics: bytes | None = None  # None: it has none
        self.tokenizer_json: str | None = None
        self.tokens: list[int] | None = None  # of any prompt; None: it tokenizes for nobody
        self.abort_pause_s = 0.0  # an engine answers between two of its steps
        self.generations: list[Generation] = []
        self.aborted: list[str] = []
        self.num_hung_up = 0  # generations whose connection the gateway closed
        self.num_connections = 0
        self.now_unix_s = BEGAN_UNIX_S

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        self._thread.start()
        self._listening.wait(60)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def close_connections(self) -> None:
        """Idle ones too, as a replica does that restarts."""
        done = threading.Event()

        def close() -> None:
            for task in self._connections:
                task.cancel()
            self._loop.call_soon(done.set)

        self._loop.call_soon_threadsafe(close)
        done.wait(60)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._listen())
        self._loop.run_forever()
        self._loop.run_until_complete(self._close())
        self._loop.close()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        self._listening.set()

    async def _close(self) -> None:
        assert self._server is not None
        self._server.close()
        await asyncio.sleep(0)  # whoever has just connected is served, and ended below
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        for writer in self._writers:
            writer.transport.abort()  # nor does one wait for a client that reads no more
        await asyncio.sleep(0)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        self._writers.add(writer)
        self.num_connections += 1
        try:
            while (received := await read_request(reader)) is not None:
                await self._answer(received, reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._connections.discard(task)
            writer.close()

    async def _answer(
        self, received: Received, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        generation = Generation(received, writer)
        if (received.path == "/ready" and self.knows_ready) or received.path == "/health":
            await generation.answer(200 if self.is_ready else 503, b"{}")
        elif received.path == "/v1/models":
            created = {"created": self.now_unix_s}
            listed = [{"id": self.model} | created]
            listed += [{"id": name, "parent": self.model} | created for name in self.adapters]
            self.now_unix_s += 1  # as servers do that tell the time of the question
            await generation.answer(200, json.dumps({"data": listed}).encode())
        elif received.path == LOAD_PATH and self.load is not None:
            self.num_load_reports += 1
            while self.holds_load:  # noqa: ASYNC110 - set in another thread
                await asyncio.sleep(0.01)
            await generation.answer(self.load_status, json.dumps(self.load).encode())
        elif received.path == "/metrics" and self.metrics is not None:
            await generation.answer(200, self.metrics, "text/plain")
        elif received.path == TOKENIZER_PATH and self.tokenizer_json is not None:
            file = TokenizerFile(model=self.model, tokenizer_json=self.tokenizer_json)
            await generation.answer(200, msgspec.json.encode(file))
        elif received.path == "/tokenize" and self.tokens is not None:
            await generation.answer(200, json.dumps({"tokens": self.tokens}).encode())
        elif received.path.endswith("/abort") and self.knows_abort:
            await self._abort(generation)
        elif received.method == "POST" and received.path.endswith(("/completions", "/messages")):
            await self._generate(generation, reader)
        else:
            await generation.answer(404, b'{"error": {"message": "not found"}}')

    async def _generate(self, generation: Generation, reader: asyncio.StreamReader) -> None:
        self.generations.append(generation)
        watcher = asyncio.create_task(self._watch(generation, reader))
        try:
            await self.behaviour(generation)
        finally:
            watcher.cancel()
            await asyncio.gather(watcher, return_exceptions=True)

    async def _watch(self, generation: Generation, reader: asyncio.StreamReader) -> None:
        """A replica notices that nobody listens."""
        with contextlib.suppress(ConnectionError):
            assert not await reader.read(1), "the gateway pipelines nothing"
        self.num_hung_up += 1
        generation.is_stopped.set()

    async def _abort(self, control: Generation) -> None:
        request_id = control.received.path.split("/")[-2]
        for generation in reversed(self.generations):  # a request sent again has its old id
            if generation.received.headers["x-request-id"] == request_id:
                generation.is_stopped.set()
                self.aborted.append(request_id)
                await asyncio.sleep(self.abort_pause_s)
                document = {
                    "type": "replica.aborted.v1",
                    "request_id": request_id,
                    "prompt_tokens": PROMPT_TOKENS,
                    "cached_prompt_tokens": CACHED_TOKENS,
                    "completion_tokens": generation.completion_tokens,
                }
                await control.answer(200, json.dumps(document).encode())
                return
        await control.answer(404, b"{}")


async def read_request(reader: asyncio.StreamReader) -> Received | None:
    head = await reader.readuntil(b"\r\n\r\n") if not reader.at_eof() else b""
    if not head:
        return None
    first, *lines = head.decode("latin-1").split("\r\n")
    method, path, _ = first.split(" ")
    headers = {k.lower(): v for k, v in (line.split(": ", 1) for line in lines if line)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Received(method, path, headers, body)
