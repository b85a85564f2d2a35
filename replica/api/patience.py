"""How long a client may keep the server waiting: to send its body, and to take what it is sent.

Nobody waits for ever, and nobody longer than the server lives.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from replica.api.protocol import RESET
from replica.errors import BodyAbandoned, BodyTimeout

logger = logging.getLogger(__name__)


class _Waits:
    """Waits of one kind: each has its time, and all are over once that is said."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._under_way: set[asyncio.Timeout] = set()
        self.are_over = False

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """Raises TimeoutError."""
        async with asyncio.timeout(0 if self.are_over else self._timeout_s) as timeout:
            self._under_way.add(timeout)
            try:
                yield
            finally:
                self._under_way.discard(timeout)

    def end(self) -> None:
        self.are_over = True
        now_s = asyncio.get_running_loop().time()
        for timeout in self._under_way:
            if not timeout.expired():  # nor about to: that cannot be changed any more
                timeout.reschedule(now_s)


class Patience:
    def __init__(self, *, read_timeout_s: float, write_timeout_s: float) -> None:
        """For a whole body, and for a client to take anything at all."""
        self._reads = _Waits(read_timeout_s)
        self._writes = _Waits(write_timeout_s)

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        """Raises BodyTimeout, or BodyAbandoned when the server goes down."""
        try:
            async with self._reads.one():
                yield
        except TimeoutError as exc:
            if self._reads.are_over:
                raise BodyAbandoned("the replica is going down") from exc
            raise BodyTimeout("the body did not arrive in time") from exc

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[None]:
        """Raises ClientTooSlow."""
        try:
            async with self._writes.one():
                yield
        except TimeoutError as exc:
            raise ClientTooSlow from exc

    def end_reading(self) -> None:
        """Bodies that are not here yet are not waited for any more."""
        self._reads.end()

    def end_writing(self) -> None:
        """Clients that have not taken their answer yet do without."""
        self._writes.end()


class ClientTooSlow(Exception):
    """It takes nothing: there is no telling it."""


class PatientApp:
    """ASGI middleware: bounds every ``send``, and ends quietly what a client has given up."""

    def __init__(self, app: ASGIApp, patience: Patience) -> None:
        self._app = app
        self._patience = patience

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_in_time(message: Message) -> None:
            async with self._patience.writing():
                await send(message)

        try:
            await self._app(scope, receive, send_in_time)
        except (ClientTooSlow, ClientDisconnect) as exc:
            logger.info("client gave up", extra={"reason": type(exc).__name__})
            scope["extensions"][RESET]()
            while (await receive())["type"] != "http.disconnect":
                pass  # a server believes in an unfinished answer only when it knows of the end
