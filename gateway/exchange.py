"""One data-plane request on one client connection: what came, and how to answer.

The pipeline sees only this: bytes in, bytes out, and one way to end a wait early.  An exchange is
interrupted when its client leaves, its time is up or the gateway stops; whoever waits through
``watch`` then gets ``Interrupted`` instead of a result.
"""

import asyncio
import http
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from contracts.usage import Outcome
from gateway.api.context import InferenceRequest
from gateway.completion import Completion
from gateway.errors import GatewayError, Interrupted
from gateway.request_head import Header, RequestHead

T = TypeVar("T")

_STATUS_LINES = {s.value: f"HTTP/1.1 {s.value} {s.phrase}\r\n".encode() for s in http.HTTPStatus}
_OK = _STATUS_LINES[200]
JSON = b"application/json"
EVENT_STREAM = b"text/event-stream; charset=utf-8"


class Exchange:
    """``response_complete``, ``keep_alive``, ``disconnected`` and ``message_event`` are spelled as
    in uvicorn's own request cycle, whose place an exchange takes on the connection."""

    body = b""  # as it came, then as the replica gets it; dropped once one has it
    came_monotonic_s: float | None = None  # when all of it was here; None: just now
    is_whole = False  # the message has arrived, or nothing more of it will
    is_closed_by_owner = False  # the connection's end is then not this answer's business
    request: InferenceRequest | None = None  # read already: the body is as the replica gets it
    refusal: GatewayError | None = None  # known before its turn has come
    is_shared = False  # read by exchanges of clients, and itself no client's
    response_complete = False
    disconnected = False
    is_started = False
    is_write_paused = False
    interruption: tuple[Outcome, GatewayError | None] | None = None  # what ``Interrupted`` says
    watched: Completion[Any] | None = None  # of whatever is being waited for
    _writable: Completion[None] | None = None

    def __init__(
        self, transport: asyncio.Transport, head: RequestHead, on_complete: Callable[[], None]
    ) -> None:
        self.head = head
        self.forwarded = head.forwarded  # lines for the replica
        self.keep_alive = head.keep_alive
        self._transport = transport
        self._on_complete = on_complete

    @property
    def message_event(self) -> "Exchange":
        """As uvicorn's: with ``set``.  Nobody waits for it."""
        return self

    def set(self) -> None:
        self.is_whole = True

    @property
    def headers(self) -> Sequence[Header]:
        return self.head.headers

    def header(self, name: bytes) -> bytes | None:
        """The first of that (lower-case) name."""
        for key, value in self.head.headers:
            if key == name:
                return value
        return None

    def peer(self) -> str:
        """The address that it came from; "" of a Unix socket."""
        name = self._transport.get_extra_info("peername")
        return str(name[0]) if isinstance(name, tuple) else ""

    # Waiting

    def watch(self, completion: Completion[T]) -> Completion[T]:
        """For awaiting it.  Raises Interrupted if the exchange is, before or while waiting."""
        if self.interruption is not None:
            raise Interrupted(*self.interruption)
        self.watched = completion
        return completion

    async def wait_writable(self) -> None:
        """Returns when the client has taken most of what was written.  Raises Interrupted."""
        if self.is_write_paused and not self.disconnected:
            self._writable = Completion()
            await self.watch(self._writable)

    def tell_writable(self, writable: Completion[None]) -> None:
        """As soon as the client has taken most of what was written."""
        self._writable = writable

    @property
    def num_unsent_bytes(self) -> int:
        return self._transport.get_write_buffer_size()

    def abort(self) -> None:
        """The connection, at once."""
        self._transport.abort()

    def interrupt(self, outcome: Outcome, error: GatewayError | None) -> None:
        """The first reason stands.  ``error`` is what the client reads, if it can."""
        if self.interruption is not None or self.response_complete:
            return
        self.interruption = outcome, error
        if self.watched is not None:
            self.watched.fail(Interrupted(outcome, error))

    def client_lost(self) -> None:
        self.disconnected = True
        self.interrupt(Outcome.CLIENT_DISCONNECTED, None)

    def resume_writing(self) -> None:
        self.is_write_paused = False
        if self._writable is not None:
            self._writable.resolve(None)

    # Answering

    def send(self, status: int, headers: bytes, body: bytes, content_type: bytes = JSON) -> None:
        """A whole answer.  ``headers``: complete lines."""
        self.is_started = True
        if not self.disconnected:
            self._transport.write(
                b"%bcontent-type: %b\r\ncontent-length: %d\r\n%b%b\r\n%b"
                % (
                    # A replica's refusal may have a code of its own.
                    _STATUS_LINES.get(status) or b"HTTP/1.1 %d Refused\r\n" % status,
                    content_type,
                    len(body),
                    headers,
                    b"" if self.keep_alive else b"connection: close\r\n",
                    body,
                )
            )
        self._complete()

    def start_stream(self, headers: bytes, first: bytes) -> None:
        self.is_started = True
        if not self.head.is_chunking_understood:
            self.keep_alive = False
        self._write(
            b"%bcontent-type: %b\r\ncache-control: no-cache\r\n%b%b%b\r\n%b"
            % (
                _OK,
                EVENT_STREAM,
                b"transfer-encoding: chunked\r\n" if self.head.is_chunking_understood else b"",
                headers,
                b"" if self.keep_alive else b"connection: close\r\n",
                self._chunk(first),
            )
        )

    @property
    def framed_writer(self) -> Callable[[bytes], object] | None:
        """As ``write_stream``, of chunks in HTTP's frame, until the exchange is interrupted.

        ``None``: what is written is framed in another way, or not at all.
        """
        return self._transport.write if self.head.is_chunking_understood else None

    def write_stream(self, data: bytes) -> None:
        """``data`` is not empty: an empty chunk would be the end."""
        if not self.disconnected:
            is_chunked = self.head.is_chunking_understood
            self._transport.write(b"%x\r\n%b\r\n" % (len(data), data) if is_chunked else data)

    def end_stream(self, last: bytes) -> None:
        end = b"0\r\n\r\n" if self.head.is_chunking_understood else b""
        self._write(self._chunk(last) + end)
        self._complete()

    def _chunk(self, data: bytes) -> bytes:
        if not data or not self.head.is_chunking_understood:  # an empty chunk would be the end
            return data
        return b"%x\r\n%b\r\n" % (len(data), data)

    def _write(self, data: bytes) -> None:
        if not self.disconnected:
            self._transport.write(data)

    def _complete(self) -> None:
        self.response_complete = True
        self.watched = None  # an idle connection keeps its last exchange, not the answer in it
        if not self.disconnected and not self.is_closed_by_owner:
            if not self.keep_alive:
                self._transport.close()
            self._on_complete()
