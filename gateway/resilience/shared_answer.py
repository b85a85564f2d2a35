"""One answer that several clients may read, and that none of them ends by leaving.

To the pipeline it is an exchange like any other; its clients are exchanges of their own, which get
what there is when they come, and then whatever comes.  Events stay as they were cut.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from contracts.usage import Outcome
from gateway.api.event_stream import DONE
from gateway.completion import Completion
from gateway.exchange import JSON, Exchange
from gateway.metering import Served, Usage

MAX_KEPT_BYTES: Final = 4 * 1024 * 1024  # an answer of a million tokens


class _NoTransport:
    """Nobody is written to but through the readers."""

    def write(self, data: bytes) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Recording:
    """A whole answer."""

    status: int
    headers: bytes  # complete lines
    parts: Sequence[bytes]  # of a stream, as they were written; else the body
    is_stream: bool

    @property
    def num_bytes(self) -> int:
        return len(self.headers) + sum(map(len, self.parts))

    @property
    def is_good(self) -> bool:
        """Complete, and what was asked for."""
        if self.status != 200 or not self.parts:
            return False
        return not self.is_stream or DONE in self.parts[-1]

    def send_to(self, exchange: Exchange, headers: bytes) -> None:
        """``headers``: complete lines in place of its own."""
        if not self.is_stream:
            exchange.send(self.status, headers, b"".join(self.parts))
            return
        exchange.start_stream(headers, b"")
        for part in self.parts[:-1]:
            exchange.write_stream(part)
        exchange.end_stream(b"".join(self.parts[-1:]))


class SharedAnswer(Exchange):
    is_shared = True
    framed_writer = None  # its readers may need other frames
    # Once its request is settled; None: it has cost nothing.
    usage: Usage | None = None
    outcome: Outcome | None = None
    served: Served | None = None  # by whom, if not as it was asked for
    adapter_of: str | None = None  # whose adapter served it, as whoever served it said
    event_id: str | None = None  # of its request
    _is_settled = False

    def __init__(
        self, first: Exchange, on_end: Callable[["SharedAnswer"], None], *, outlives_readers: bool
    ) -> None:
        """Of the request that ``first`` has brought, which is to ``join`` like all others.

        ``outlives_readers``: it comes to its end even if nobody is left to read it.
        """
        super().__init__(
            _NoTransport(),  # type: ignore[arg-type]  # as much of one as an exchange uses
            msgspec.structs.replace(first.head, idempotency_key=None),
            on_complete=lambda: on_end(self),
        )
        self.body, self.request = first.body, first.request
        self.is_whole = True
        self._peer = first.peer()
        self.is_unread = True  # nobody has joined it yet
        self._outlives_readers = outlives_readers
        self._readers: dict[Exchange, tuple[bytes, Completion[None]]] = {}
        self.status = 200
        self._headers: bytes | None = None  # None: it has not begun
        self._parts: list[bytes] = []
        self._is_stream = False
        self.recording: Recording | None = None  # at the end, unless it is too large to be kept
        self.is_too_large = False
        self._num_bytes = 0
        self._on_settled: list[Callable[[], None]] = []

    def settle(
        self,
        event_id: str,
        usage: Usage | None = None,
        outcome: Outcome | None = None,
        served: Served | None = None,
        adapter_of: str | None = None,
    ) -> None:
        """The first stands."""
        if self._is_settled:
            return
        self._is_settled = True
        self.event_id = event_id
        self.usage, self.outcome = usage, outcome
        self.served, self.adapter_of = served, adapter_of
        waiting, self._on_settled = self._on_settled, []
        for tell in waiting:
            tell()

    def when_settled(self, tell: Callable[[], None]) -> None:
        """At once, if it is."""
        if self._is_settled:
            tell()
        else:
            self._on_settled.append(tell)

    def join(self, reader: Exchange, headers: bytes) -> Completion[None]:
        """Done when the reader has all of it.  ``headers``: complete lines behind its own.

        Not of one that is too large.
        """
        ended: Completion[None] = Completion()
        self.is_unread = False
        if self.recording is not None:
            self.recording.send_to(reader, self.recording.headers + headers)
            ended.resolve(None)
            return ended
        self._readers[reader] = headers, ended
        self.resume_writing()  # it has room
        if self._headers is not None:
            reader.start_stream(self._headers + headers, b"".join(self._parts))
        return ended

    def leave(self, reader: Exchange) -> None:
        """Its client has gone."""
        self._readers.pop(reader, None)
        self.resume_writing()  # whoever is left may have room
        if not self._readers and not self._outlives_readers:
            self.client_lost()
            self._on_complete()  # a lost client's answer does not get to say so itself

    # An exchange's

    @property
    def is_write_paused(self) -> bool:  # type: ignore[override]  # it follows from its readers'
        """None of its readers has room: it is as fast as the fastest."""
        return bool(self._readers) and all(reader.is_write_paused for reader in self._readers)

    async def wait_writable(self) -> None:
        if self.is_write_paused and not self.disconnected:
            self._writable = Completion()
            for reader in self._readers:
                reader.tell_writable(self._writable)
            await self.watch(self._writable)

    def resume_writing(self) -> None:
        if self._writable is not None:
            self._writable.resolve(None)

    def peer(self) -> str:
        return self._peer

    def send(self, status: int, headers: bytes, body: bytes, content_type: bytes = JSON) -> None:
        self.is_started = True
        self._note(body)
        for reader, (more, _) in self._readers.items():
            reader.send(status, headers + more, body, content_type)
        self._end(status, headers)

    def start_stream(self, headers: bytes, first: bytes) -> None:
        self.is_started = self._is_stream = True
        self._headers = headers
        self._note(first)
        for reader, (more, _) in self._readers.items():
            reader.start_stream(headers + more, first)

    def write_stream(self, data: bytes) -> None:
        self._note(data)
        for reader in self._readers:
            reader.write_stream(data)
            if reader.is_write_paused and reader.num_unsent_bytes > MAX_KEPT_BYTES:
                reader.abort()  # too far behind the fastest; its client may ask again

    def end_stream(self, last: bytes) -> None:
        self._note(last)
        for reader in self._readers:
            reader.end_stream(last)
        assert self._headers is not None
        self._end(200, self._headers)

    def _note(self, part: bytes) -> None:
        self._num_bytes += len(part)
        if self._num_bytes > MAX_KEPT_BYTES:
            self.is_too_large = True
            self._parts.clear()
        elif part:
            self._parts.append(part)

    def _end(self, status: int, headers: bytes) -> None:
        self.status = status
        if not self.is_too_large:
            self.recording = Recording(status, headers, self._parts, self._is_stream)
        readers, self._readers = self._readers, {}
        self._complete()
        for _, ended in readers.values():
            ended.resolve(None)
