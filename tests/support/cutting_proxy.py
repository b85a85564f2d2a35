"""TCP proxies on 127.0.0.1 before replicas, which break streams off after so many tokens."""

import asyncio
import json
import re
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from contracts.names import HEADER_EVENT_ID

_IDS = re.compile(rb'"token_ids":\[([\d,]+)\]')
_GENERATION = re.compile(rb"POST /v1/(?:chat/)?completions ")
_EVENT_ID = re.compile(HEADER_EVENT_ID.encode() + rb": (\S+)")


@dataclass
class Cuts:
    """What happens to generations, whichever replica gets them.

    Each request says it itself: in ``cut_after``, which nobody else knows, there is a number of
    tokens for each of its attempts.  The others come to their end.
    """

    attempts: dict[bytes, list[dict[str, Any]]] = field(  # bodies, by the request's event
        default_factory=lambda: defaultdict(list)
    )
    begun_monotonic_s: list[float] = field(default_factory=list)  # of each attempt
    made_monotonic_s: list[float] = field(default_factory=list)
    is_mid_event: bool = False  # a part of the next event passes, too

    @property
    def resumed_at(self) -> list[int]:
        """How many tokens each attempt but the first was given."""
        resumed = [body for bodies in self.attempts.values() for body in bodies[1:]]
        return [len(body.get("resume_tokens", ())) for body in resumed]

    def begin(self, request: bytes) -> int | None:
        """After how many tokens it is to be cut; ``None``: not at all."""
        head, _, body = request.partition(b"\r\n\r\n")
        event_id = _EVENT_ID.search(head)
        assert event_id is not None
        attempts = self.attempts[event_id[1]]
        attempts.append(json.loads(body))
        self.begun_monotonic_s.append(time.monotonic())
        planned: list[int] = attempts[0].get("cut_after", [])
        return planned[len(attempts) - 1] if len(attempts) <= len(planned) else None


class CuttingProxy:
    def __init__(self, target_port: int, cuts: Cuts) -> None:
        self._target_port = target_port
        self._cuts = cuts
        self.num_polls = 0  # requests that generate nothing
        self.num_events = 0  # of streams
        self.port = 0
        self._serving: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        task = asyncio.create_task(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def close(self) -> None:
        """Once its clients have gone: each connection then comes to its end."""
        async with asyncio.timeout(60):
            await asyncio.gather(*self._serving, return_exceptions=True)
        await _closed(*self._writers)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._target_port)
        except OSError:
            await _closed(writer)
            return
        except asyncio.CancelledError:
            await _closed(writer)
            raise
        connection = _Connection(self, self._cuts)
        pumps = [
            asyncio.create_task(connection.upward(reader, back)),
            asyncio.create_task(connection.downward(there, writer)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            await _closed(writer, back)


async def _closed(*ends: asyncio.StreamWriter) -> None:
    for end in ends:
        end.close()
    await asyncio.gather(*(end.wait_closed() for end in ends), return_exceptions=True)


class _Connection:
    """One request at a time."""

    def __init__(self, proxy: CuttingProxy, cuts: Cuts) -> None:
        self._proxy = proxy
        self._cuts = cuts
        self._limit: int | None = None
        self._num_tokens = 0

    async def upward(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while chunk := await source.read(1 << 20):
                if _GENERATION.match(chunk):
                    self._limit, self._num_tokens = self._cuts.begin(chunk), 0
                else:
                    self._proxy.num_polls += 1
                sink.write(chunk)
                await sink.drain()

    async def downward(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        rest = b""
        with suppress(OSError):
            while chunk := await source.read(65_536):
                if chunk.startswith(b"HTTP/1.1 ") and b"text/event-stream" not in chunk:
                    self._limit = None  # a refusal
                self._proxy.num_events += chunk.count(b"data: {")
                if self._limit is None:
                    sink.write(chunk)
                    continue
                *events, rest = (rest + chunk).split(b"\n\n")
                for event in events:
                    if self._is_cut_in(event + b"\n\n", sink):
                        self._cuts.made_monotonic_s.append(time.monotonic())
                        await sink.drain()
                        return
                if rest.endswith(b"0\r\n\r\n"):
                    sink.write(rest)
                    rest = b""

    def _is_cut_in(self, event: bytes, sink: asyncio.StreamWriter) -> bool:
        """In its middle, or behind it."""
        assert self._limit is not None
        num_tokens = sum(ids.count(b",") + 1 for ids in _IDS.findall(event))
        if self._cuts.is_mid_event and self._num_tokens + num_tokens > self._limit:
            sink.write(event[: len(event) // 2])
            return True
        sink.write(event)
        self._num_tokens += num_tokens
        return self._num_tokens >= self._limit


@asynccontextmanager
async def cutting_proxy(target_port: int, cuts: Cuts) -> AsyncIterator[CuttingProxy]:
    proxy = CuttingProxy(target_port, cuts)
    server = await asyncio.start_server(proxy.accept, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        await proxy.close()
