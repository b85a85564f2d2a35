"""One HTTP/1.1 connection to a replica: one request at a time, kept alive in between."""

import asyncio
import re
import socket
import struct
from collections.abc import Callable

import httptools

from gateway.errors import UpstreamError, UpstreamTimeout
from gateway.upstream.chunk_frames import END, HEADS, MOST_BYTES, ends_with_whole
from gateway.upstream.response import FramedTaker, UpstreamResponse

OnFree = Callable[["UpstreamConnection"], None]

_SECONDS = re.compile(rb"\d{1,5}")
_AT_ONCE_S = 0.05  # from the writing of a request to a reset that nothing but a close can mean
_BYTES_ACKED = struct.Struct("=120xQ")  # tcpi_bytes_acked of Linux' struct tcp_info, since 4.1


def _always() -> bool:
    return True


def _seconds(retry_after: bytes | None) -> int | None:
    """``None`` also for a date, which it may be."""
    return int(retry_after) if retry_after and _SECONDS.fullmatch(retry_after) else None


class UpstreamConnection(asyncio.Protocol):
    """Tells ``on_idle`` when it can take another request, ``on_closed`` when it never will.

    ``on_stale`` gets a response whose request was written to a kept-alive connection just as the
    replica closed that: it has not been read, the one case in which sending again is safe.  A
    replica that dies at its work looks much the same, but its machine had acknowledged the request.
    """

    def __init__(
        self,
        *,
        on_idle: OnFree,
        on_closed: OnFree,
        on_stale: Callable[[UpstreamResponse], None],
        head_timeout_s: float,
        idle_timeout_s: float,
    ) -> None:
        self._on_idle = on_idle
        self._on_closed = on_closed
        self._on_stale = on_stale
        self._head_timeout_s = head_timeout_s
        self._idle_timeout_s = idle_timeout_s
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self.is_closing: Callable[[], bool] = _always  # before and after its transport's life
        self._headers: dict[bytes, bytes] = {}
        self.on_header = self._headers.__setitem__  # the parser calls it; the last of a name counts
        self._parser = httptools.HttpResponseParser(self)
        self._response: UpstreamResponse | None = None
        self._num_served = 0
        self._num_sent_bytes = 0  # of all requests before the running one
        self._num_request_bytes = 0
        self._sent_s = 0.0
        self.idle_since_s = 0.0
        self._is_head_in = self._has_answered = self._is_complete = False  # of the message
        self._is_reusable = self._has_excess = False  # as of the last one
        # None: the parser is within a chunk, or there is no such taker.
        self._framed_taker: FramedTaker | None = None
        self._is_heard = False  # of an answer, since its deadline was looked at
        self._deadline_s = 0.0

    def send(self, response: UpstreamResponse) -> None:
        """Writes the request.  The connection is busy until ``on_idle`` or ``on_closed``."""
        assert self._transport is not None
        assert self._response is None
        self._response = response
        self._headers.clear()
        self._is_head_in = self._has_answered = self._is_complete = False
        self._is_heard = False
        response.source = self
        response.is_sent = True
        self._num_request_bytes = len(response.request)
        self._sent_s = self._loop.time()
        self._deadline_s = self._sent_s + self._head_timeout_s
        self._transport.write(response.request)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    # asyncio

    def connection_made(  # type: ignore[override]  # uvloop's is a Transport in all but class
        self, transport: asyncio.Transport
    ) -> None:
        self._transport = transport
        self.is_closing = transport.is_closing

    def data_received(self, data: bytes) -> None:
        take = self._framed_taker
        if take is not None and (num_bytes := len(data)) < MOST_BYTES:
            head = HEADS[num_bytes]
            content = data.removeprefix(head).removesuffix(END)
            if len(head) + len(content) == num_bytes - 2:  # behind it the parser is as it was
                self._is_heard = True
                try:
                    if take(content, data):
                        return
                except UpstreamError as failure:
                    self._end_wait(failure)
                    return
        self._parse(data)

    def _parse(self, data: bytes) -> None:
        response, self._framed_taker = self._response, None
        is_awaited = response is not None and response.framed_taker is not None
        self._has_answered = True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._fail(UpstreamError("The replica's answer is not valid HTTP."))
            return
        if response is None:
            self.close()  # bytes nobody asked for
        elif self._is_complete:
            self._finish(response)
        else:
            self._is_heard = self._is_head_in  # else one that comes byte by byte is never late
            is_between = is_awaited and ends_with_whole(data, response.latest)
            response.publish()
            if is_between and response is self._response:
                self._framed_taker = response.framed_taker

    def _end_wait(self, failure: UpstreamError) -> None:
        self._framed_taker = None
        if self._response is not None:
            self._response.end_wait(failure)

    def connection_lost(self, exc: Exception | None) -> None:
        response, self._response = self._response, None
        self._framed_taker = None
        if response is not None:
            response.source = None
            self._end_by_loss(response, exc)
        self._transport, self.is_closing = None, _always
        self._on_closed(self)

    # httptools

    def on_message_begin(self) -> None:
        self._has_excess = self._is_complete  # a second answer to one request

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        self._is_head_in = status >= 200
        if status >= 200 and self._response is not None and not self._has_excess:
            content_type = self._headers.get(b"content-type")  # as most write it
            if content_type is None:
                content_type = self._header(b"content-type") or b""
            response = self._response
            response.request = b""  # nobody will send it again
            response.status, response.content_type = status, content_type
            if status != 200:
                response.retry_after_s = _seconds(self._header(b"retry-after"))

    def on_body(self, body: bytes) -> None:
        if self._response is not None and not self._has_excess:
            self._response.add(body)

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() < 200:  # 1xx: the real answer follows
            self._headers.clear()
            self._is_head_in = False
            return
        self._is_complete = True
        self._is_reusable = self._parser.should_keep_alive()  # llhttp forgets it right after this

    # One exchange

    def _header(self, name: bytes) -> bytes | None:
        """Of that (lower-case) name."""
        for known, value in self._headers.items():
            if known.lower() == name:
                return value
        return None

    def _finish(self, response: UpstreamResponse) -> None:
        self._response = None
        self._num_served += 1
        self._num_sent_bytes += self._num_request_bytes
        self.idle_since_s = self._loop.time()
        response.source = None
        transport = self._transport
        is_sound = self._is_reusable and not self._has_excess
        if is_sound and transport is not None and not transport.is_closing():
            if response.is_paused:  # its consumer cannot say so any more
                transport.resume_reading()
            self._on_idle(self)
        else:
            self.close()
        response.is_ended = True
        response.publish()

    def _end_by_loss(self, response: UpstreamResponse, exc: Exception | None) -> None:
        if self._num_served > 0 and not self._has_answered and self._is_unread(exc):
            self._on_stale(response)
        elif response.status and not self._is_framed():
            response.is_ended = True  # the close is the end: HTTP/1.0 style
            response.publish()
        else:
            response.fail(UpstreamError("The server broke off the answer."))

    def _is_framed(self) -> bool:
        names = (b"content-length", b"transfer-encoding")
        return any(self._header(name) is not None for name in names)

    def _is_unread(self, exc: Exception | None) -> bool:
        """Whether the replica closed the connection before it had read the request.

        Either none of it has arrived, or the kernel that had it said with a reset that it was left
        unread (RFC 2525, 2.17).  A late reset may be anyone's, of a connection silent for too long.
        """
        is_at_once = self._loop.time() - self._sent_s < _AT_ONCE_S
        return not self._has_arrived() or (isinstance(exc, ConnectionResetError) and is_at_once)

    def _has_arrived(self) -> bool:
        """Whether any of the request reached the replica's machine; True where nobody can say."""
        assert self._transport is not None
        connection = self._transport.get_extra_info("socket")
        try:
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_ACKED.size)
            num_acked = int(_BYTES_ACKED.unpack(info)[0])
        except (OSError, struct.error):
            return True
        # The opening SYN counts as one.  Zero: earlier requests were answered, so it is not kept.
        return num_acked == 0 or num_acked > self._num_sent_bytes + 1

    def _fail(self, failure: UpstreamError) -> None:
        response, self._response = self._response, None
        self.close()
        if response is not None:
            response.source = None
            response.fail(failure)

    # A response's source

    def abandon(self) -> None:
        """Closing is how HTTP/1.1 says so."""
        response, self._response = self._response, None
        self._framed_taker = None
        if response is not None:
            response.source = None
            response.fail(UpstreamError("cancelled"))
        if self._transport is not None:
            self._transport.abort()

    def pause(self) -> None:
        if self._transport is not None:
            self._transport.pause_reading()

    def resume(self) -> None:
        self._allow(self._idle_timeout_s)
        if self._transport is not None:
            self._transport.resume_reading()

    # Time: looked at now and then, instead of a timer per request

    def _allow(self, seconds: float) -> None:
        self._deadline_s = self._loop.time() + seconds

    def check_deadline(self, now_s: float) -> None:
        """Fails a request whose replica has been silent for too long."""
        if self._response is None:
            return
        if self._is_heard:
            self._is_heard = False
            self._deadline_s = now_s + self._idle_timeout_s
        elif now_s < self._deadline_s:
            return
        elif self._response.is_paused:
            self._allow(self._idle_timeout_s)  # our own doing: the client is slow, not the replica
        else:
            self._fail(UpstreamTimeout("The replica did not answer in time."))
