"""An OpenAI completions server around any engine that steps, so that all are measured on one wire.

Nothing but the standard library: it runs in the environment of the engine it serves.  Prompts are
token ids, answers have no text: clients of benchmarks count and time.
"""

import asyncio
import json
import queue
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Progress:
    number: int
    num_tokens: int  # new ones
    is_finished: bool


class SteppingEngine(Protocol):
    def add(self, number: int, prompt: Sequence[int], max_tokens: int) -> None: ...

    def step(self) -> Iterable[Progress]: ...


@dataclass(frozen=True)
class _Request:
    number: int
    prompt: Sequence[int]
    max_tokens: int
    events: "asyncio.Queue[Progress]"
    loop: asyncio.AbstractEventLoop


class CompletionsServer:
    def __init__(self, engine: SteppingEngine, name: str) -> None:
        self._engine = engine
        self._name = name
        self._inbox: queue.SimpleQueue[_Request] = queue.SimpleQueue()
        self._num_requests = 0

    def serve(self, port: int) -> None:
        """For ever."""
        threading.Thread(target=self._step_for_ever, daemon=True).start()
        asyncio.run(self._listen(port))

    async def _listen(self, port: int) -> None:
        server = await asyncio.start_server(self._answer, "127.0.0.1", port)
        await server.serve_forever()

    def _step_for_ever(self) -> None:
        running: dict[int, _Request] = {}
        while True:
            while not running or not self._inbox.empty():
                request = self._inbox.get()
                running[request.number] = request
                self._engine.add(request.number, request.prompt, request.max_tokens)
            for progress in self._engine.step():
                request = running[progress.number]
                request.loop.call_soon_threadsafe(request.events.put_nowait, progress)
                if progress.is_finished:
                    del running[progress.number]

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n")
            if head.startswith("GET"):
                writer.write(json.dumps({"data": [{"id": self._name}]}).encode())
                return
            length = int(head.lower().split("content-length:")[1].split("\r\n")[0])
            await self._complete(json.loads(await reader.readexactly(length)), writer)
        finally:
            writer.close()

    async def _complete(self, body: dict[str, object], writer: asyncio.StreamWriter) -> None:
        prompt, max_tokens = body["prompt"], body["max_tokens"]
        assert isinstance(prompt, list)
        assert isinstance(max_tokens, int)
        self._num_requests += 1
        events: asyncio.Queue[Progress] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        self._inbox.put(_Request(self._num_requests, prompt, max_tokens, events, loop))
        num_tokens, is_finished = 0, False
        while not is_finished:
            progress = await events.get()
            num_tokens, is_finished = num_tokens + progress.num_tokens, progress.is_finished
            if progress.num_tokens:
                writer.write(b'data: {"choices": [{"index": 0, "text": ""}]}\n\n')
        usage = {"completion_tokens": num_tokens, "prompt_tokens": len(prompt)}
        writer.write(f"data: {json.dumps({'choices': [], 'usage': usage})}\n\n".encode())
        writer.write(b"data: [DONE]\n\n")
        await writer.drain()
