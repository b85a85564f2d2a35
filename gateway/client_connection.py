"""A client's connection through time: what it is busy with, and for how long it may be.

Which bytes are a request, and who answers them, is its subclass's business: see ``protocol``.
"""

import asyncio
import socket
import struct
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from contracts.usage import Outcome
from gateway.errors import AnswerTimeout, GatewayError, RequestTimeout
from gateway.exchange import Exchange

_TCP_CLIENT_LEFT = 7, 8  # CLOSE and CLOSE_WAIT of Linux' include/net/tcp_states.h
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # struct linger: on, zero seconds


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    max_body_bytes: int
    read_timeout_s: float  # for a whole request
    write_timeout_s: float  # without a byte taken by the client
    answer_timeout_s: float  # for a whole answer, and again for the client to take what is left


class ClientConnection(HttpToolsProtocol, ABC):
    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],  # uvicorn's signature
        loop: asyncio.AbstractEventLoop | None,
        limits: ConnectionLimits,
    ) -> None:
        super().__init__(config, server_state, app_state, loop)
        self._limits = limits
        self._running: Exchange | None = None  # its answer is being made
        self._waiting: deque[Exchange | None] = deque()  # pipelined; None: uvicorn's own
        self._is_turn_due = False  # an answer has ended, but the client does not read
        self._reading_since_s: float | None = self.loop.time()  # None: no message is incomplete
        self._idle_since_s: float | None = None  # None: a request is under way
        self._answering_since_s = 0.0  # while an exchange is running
        self._unread_since_s: float | None = None  # None: the client keeps up

    @abstractmethod
    def _refuse_bytes(self, error: GatewayError) -> None:
        """Answers what is no request, or not yet one, and closes."""

    @abstractmethod
    def _go_on(self) -> None:
        """With what waits, or with reading."""

    def _started(self) -> bool:
        return self._running is not None and self._running.is_whole

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # The kernel's clock: it alone knows whether a client has taken a byte, or is still there.
        transport.get_extra_info("socket").setsockopt(
            socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(self._limits.write_timeout_s * 1e3)
        )

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._waiting.clear()
        self.pipeline.clear()
        if self._running is not None:
            self._running.client_lost()

    def check_deadlines(self, now_s: float) -> None:
        """Ends what does not come to its end by itself.  Called every second."""
        self._check_idle(now_s)
        self._check_request(now_s)
        self._check_answer(now_s)
        self._check_client(now_s)

    def check_unread(self) -> None:
        """With more requests in its pipeline a client is not read, so its end is not noticed.

        Called ten times a second of one that is not read.
        """
        if self._started():
            connection = self.transport.get_extra_info("socket")
            state = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
            if state in _TCP_CLIENT_LEFT:
                self.transport.abort()

    def _check_request(self, now_s: float) -> None:
        since_s = self._reading_since_s
        if since_s is None or self.flow.read_paused or self._started():
            return
        if now_s - since_s >= self._limits.read_timeout_s:
            self._refuse_bytes(RequestTimeout("The request did not arrive in time."))

    def _check_idle(self, now_s: float) -> None:
        since_s = self._idle_since_s
        if since_s is not None and now_s - since_s >= self.timeout_keep_alive:
            self.transport.close()

    def _check_answer(self, now_s: float) -> None:
        limit_s = self._limits.answer_timeout_s
        if self._running is None or not self._started():
            return
        if now_s - self._answering_since_s >= limit_s:
            error = AnswerTimeout(f"The answer was not complete after {limit_s:g} seconds.")
            self._running.interrupt(Outcome.CANCELLED, error)

    def _check_client(self, now_s: float) -> None:
        """One that takes a byte now and then may take so for days what is written for it."""
        if self.transport.get_write_buffer_size() == 0:
            self._unread_since_s = None
        elif self._unread_since_s is None:
            self._unread_since_s = now_s
        elif now_s - self._unread_since_s >= self._limits.answer_timeout_s:
            # With a reset: else the kernel would go on where we left off.
            self.transport.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE
            )
            self.transport.abort()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._running is not None:
            self._running.is_write_paused = True

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._running is not None:
            self._running.resume_writing()
        elif self._is_turn_due:
            self._go_on()

    def shutdown(self) -> None:
        """The server stops: idle connections close now, busy ones after their answer."""
        if self._running is not None and not self._running.response_complete:
            self._running.keep_alive = False
        else:
            super().shutdown()
