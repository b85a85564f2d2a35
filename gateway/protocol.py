"""HTTP/1.1 on a client connection: data-plane requests leave uvicorn's way before ASGI begins.

A subclass of uvicorn's protocol.  It takes POST to the paths of ``api.context.Operation`` and gives
each, once its body is whole, to ``start``; every other request goes to the ASGI application as if
this class were not there.  Both kinds may follow each other on one connection, pipelined too.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE
from uvicorn.server import ServerState

from gateway.api.context import Operation
from gateway.api.errors import error_body
from gateway.api.headers import request_id_header
from gateway.client_connection import ClientConnection, ConnectionLimits
from gateway.errors import (
    GatewayError,
    HeadersTooLarge,
    InvalidRequest,
    RequestTooLarge,
)
from gateway.exchange import Exchange
from gateway.request_head import KnownHead, RequestHead, known_head, repetition, request_head

DATA_PLANE_PATHS: Final = {operation.path_bytes: operation for operation in Operation}

logger = logging.getLogger(__name__)

_NOT_HTTP = "The bytes are not a valid HTTP/1.1 request."
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
# Around a value, and none of it (RFC 9110, 5.5): llhttp drops only those before it.
_BLANKS: Final = b" \t"
_LINGER_S = 2.0  # for a client to notice the refusal and stop sending
_MAX_FRAMING_BYTES = 64 * 1024  # in a row; as nginx's four buffers of 8 KB, doubled

Start = Callable[[Exchange], object]


class DataPlaneProtocol(ClientConnection):
    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],  # uvicorn's signature
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        start: Start,
        make_request_id: Callable[[], str],
        limits: ConnectionLimits,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop, limits)
        self._start = start
        self._make_request_id = make_request_id
        self._num_hosts = 0  # of the message that is being parsed
        self._num_announced_bytes = 0  # of its body
        self._is_in_head = True
        self._num_framing_bytes = 0  # since the last byte of a body: head, chunk sizes, trailers
        self._is_discarding = False  # the message that is being parsed has been refused
        self._accepted: RequestHead | None = None  # by the parser, just now
        self._known: KnownHead | None = None  # the last that was
        self._num_known_left = 0  # bytes of the body behind it that has come again
        self._incoming: Exchange | None = None  # its message is being parsed
        self._incoming_parts: list[bytes] = []
        self._num_incoming_bytes = 0

    # Parsing

    def data_received(self, data: bytes) -> None:
        self._idle_since_s = None
        if self._num_known_left:
            self._on_known_body(data)
            return
        known = self._known
        if known is not None and self._reading_since_s is None and self.cycle.response_complete:
            split = known.split(data)
            if split is not None and len(split[1]) <= split[0] <= self._limits.max_body_bytes:
                self._on_known_head(known.head, *split)
                return
        self._on_message_bytes(data)

    def _on_message_bytes(self, data: bytes) -> None:
        begins = self._reading_since_s is None
        if begins:  # an empty line, maybe: a request should follow
            self._reading_since_s = self.loop.time()
        self._accepted = None
        self._parse(data)
        if begins and self._accepted is not None:
            self._known = known_head(self._accepted, data, self._num_incoming_bytes)

    def _parse(self, data: bytes) -> None:
        self._num_framing_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._unsupported_upgrade_warning()
        except httptools.HttpParserError as exc:
            known = exc.__context__  # what a callback raised, where one did
            error = known if isinstance(known, InvalidRequest) else InvalidRequest(_NOT_HTTP)
            self._refuse_bytes(error)
        else:
            if self._num_framing_bytes > _MAX_FRAMING_BYTES:
                self._refuse_bytes(HeadersTooLarge("The headers are too large."))

    def on_message_begin(self) -> None:
        self._reading_since_s = self.loop.time()
        self.url = b""
        self.headers = []
        self.expect_100_continue = False
        self._num_hosts = self._num_announced_bytes = 0
        self._incoming = None

    def on_header(self, name: bytes, value: bytes) -> None:
        """Not a trailer: it came after the decisions that a header is for."""
        if self._is_in_head:
            name, value = name.lower(), value.rstrip(_BLANKS)
            if name == b"host":
                self._num_hosts += 1
            elif name == b"content-length":
                self._num_announced_bytes = int(value)
            elif name == b"expect" and value.lower() == b"100-continue":
                self.expect_100_continue = True
            self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Raises InvalidRequest, which ends the parsing, and with it the connection."""
        self._is_in_head = False
        is_modern = self.parser.get_http_version() != "1.0"
        if self._num_hosts != 1:
            self._refuse_hosts(is_needed=is_modern)
        operation = DATA_PLANE_PATHS.get(self.url) or self._operation_of_query()
        if operation is None or self.parser.get_method() != b"POST":
            self._hand_to_uvicorn()
            return
        head = request_head(
            operation,
            self.headers,
            keep_alive=is_modern and self.parser.should_keep_alive(),
            is_chunking_understood=is_modern,
        )
        exchange = Exchange(self.transport, head, self.on_response_complete)
        self._incoming, self._incoming_parts, self._num_incoming_bytes = exchange, [], 0
        self._take_place(exchange)
        fault = self._fault_of_head()
        if fault is not None:
            self._refuse(exchange, fault)
        elif self.expect_100_continue:
            if exchange is self._running:
                self.transport.write(_CONTINUE)
        elif head.keep_alive and self._num_announced_bytes:
            self._accepted = head

    def on_body(self, body: bytes) -> None:
        self._num_framing_bytes = 0
        if self._is_discarding:
            return
        if self._incoming is None:
            super().on_body(body)
            return
        self._num_incoming_bytes += len(body)
        if self._num_incoming_bytes <= self._limits.max_body_bytes:
            self._incoming_parts.append(body)
        else:
            self._refuse(self._incoming, self._too_large())

    def on_message_complete(self) -> None:
        self._is_in_head, self._num_framing_bytes = True, 0
        self._reading_since_s = None
        exchange, self._incoming = self._incoming, None
        if self._is_discarding:
            self._is_discarding = False
            if self._running is not None and self._running.response_complete:
                self.transport.close()  # all of the refused request is in: nothing to linger for
        elif exchange is None:
            super().on_message_complete()
        else:
            parts, self._incoming_parts = self._incoming_parts, []
            exchange.body = parts[0] if len(parts) == 1 else b"".join(parts)
            exchange.is_whole = True
            if exchange is self._running:
                self._begin(exchange)

    # Without the parser, which stands between two messages meanwhile

    def _on_known_head(self, head: RequestHead, num_bytes: int, body: bytes) -> None:
        """As the parser would, which has read this head before."""
        exchange = Exchange(self.transport, head, self.on_response_complete)
        self.cycle = exchange  # type: ignore[assignment]  # as in _take_place
        self._running = exchange
        if len(body) == num_bytes:
            exchange.body = body
            exchange.is_whole = True
            self._answering_since_s = self.loop.time()
            self._start(exchange)
            return
        self._reading_since_s = self.loop.time()
        self._incoming, self._incoming_parts = exchange, []
        self._num_known_left = num_bytes
        if body:
            self._on_known_body(body)

    def _on_known_body(self, data: bytes) -> None:
        num_left = self._num_known_left - len(data)
        if num_left > 0:
            self._incoming_parts.append(data)
            self._num_known_left = num_left
            return
        self._num_known_left = 0
        self._incoming_parts.append(data[:num_left] if num_left else data)
        self.on_message_complete()
        if num_left:
            self._on_message_bytes(data[num_left:])  # of the next request

    def _operation_of_query(self) -> Operation | None:
        return DATA_PLANE_PATHS.get(self.url.partition(b"?")[0])

    def _fault_of_head(self) -> GatewayError | None:
        """For which the request is refused in its turn."""
        if self.parser.should_upgrade():  # the parser would take the body for another protocol's
            return InvalidRequest("Send the request without 'Upgrade'.")
        if self._num_announced_bytes > self._limits.max_body_bytes:
            return self._too_large()
        return repetition(self.headers)

    def _refuse_hosts(self, *, is_needed: bool) -> None:
        """RFC 9112, 3.2: two could be taken for two sites, by us and by whoever is before us."""
        if is_needed or self._num_hosts > 1:
            raise InvalidRequest("A request needs one 'Host' header, no more and no less.")

    def _hand_to_uvicorn(self) -> None:
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        previous, num_waiting = self.cycle, len(self.pipeline)
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expects
        self.headers.extend(headers)
        super().on_headers_complete()
        if self.cycle is not previous and len(self.pipeline) > num_waiting:
            self._waiting.append(None)

    def _take_place(self, exchange: Exchange) -> None:
        """Behind whatever this connection is still answering."""
        previous: Any = self.cycle  # an Exchange or uvicorn's cycle: alike where it matters
        self.cycle = exchange  # type: ignore[assignment]
        if previous is None or previous.response_complete:
            self._running = exchange
        else:
            self.flow.pause_reading()
            self._waiting.append(exchange)

    # Refusing

    def _too_large(self) -> RequestTooLarge:
        return RequestTooLarge(f"The body may hold at most {self._limits.max_body_bytes} bytes.")

    def _refuse(self, exchange: Exchange, error: GatewayError) -> None:
        """In its turn; the rest of its body is read and dropped."""
        self._incoming = None
        self._is_discarding = True
        exchange.keep_alive = False
        exchange.refusal = error
        exchange.is_whole = True
        if exchange is self._running:
            self._begin(exchange)

    def _send_refusal(self, exchange: Exchange, error: GatewayError) -> None:
        """Then lingers: closed with unread bytes, TCP would reset, and the answer be lost."""
        exchange.is_closed_by_owner = True
        exchange.send(error.status, self._refusal_header(error), error_body(error))
        if self._is_discarding:
            self.loop.call_later(_LINGER_S, self.transport.close)
        else:
            self.transport.close()

    def _refuse_bytes(self, error: GatewayError) -> None:
        """What came is no request, so the connection has no future."""
        if self._running is not None and not self._running.response_complete and self._started():
            self._running.keep_alive = False  # let the good request before the garbage finish
            self.flow.pause_reading()
            return
        body = error_body(error)
        self.transport.write(
            b"%bcontent-type: application/json\r\ncontent-length: %d\r\n%b"
            b"connection: close\r\n\r\n%b"
            % (STATUS_LINE[error.status], len(body), self._refusal_header(error), body)
        )
        self.transport.close()

    def _refusal_header(self, error: GatewayError) -> bytes:
        """The id of a request that nobody but the log will know."""
        request_id = self._make_request_id()
        fields = {"request_id": request_id, "status": error.status, "reason": error.code}
        logger.info("request refused", extra=fields)
        return request_id_header(request_id)

    # Turns

    def on_response_complete(self) -> None:
        self._running = None
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        if self.flow.write_paused:
            self._is_turn_due = True
            self.flow.pause_reading()
        elif self._waiting or self.flow.read_paused:
            self._go_on()
        else:
            self._idle_since_s = self.loop.time()

    def _go_on(self) -> None:
        """Reads on only when nothing waits: what one client can make us keep is bounded."""
        self._is_turn_due = False
        if self._waiting:
            self.loop.call_soon(self._next_turn)  # not within the turn that just ended
        else:
            self._idle_since_s = self.loop.time()
            self.flow.resume_reading()

    def _next_turn(self) -> None:
        if not self._waiting or self.transport.is_closing():
            return  # the connection was lost meanwhile
        exchange = self._waiting.popleft()
        if not self._waiting:
            self.flow.resume_reading()
        if exchange is None:
            cycle, app = self.pipeline.pop()
            self._start_asgi_task(cycle, app)
            return
        self._running = exchange
        if exchange.is_whole:
            self._begin(exchange)
        elif self.expect_100_continue:  # its body is still being waited for, so it parsed last
            self.transport.write(_CONTINUE)

    def _begin(self, exchange: Exchange) -> None:
        self._answering_since_s = self.loop.time()
        if exchange.refusal is None:
            self._start(exchange)
        else:
            self._send_refusal(exchange, exchange.refusal)
