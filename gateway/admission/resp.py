"""A pipelined connection to the quota store: one write per tick of the event loop.

Replies come back in order, so a call is a future in a queue.  A call that outlives its deadline
takes the connection with it: on a pipelined connection nothing behind it can be trusted to come.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import parse_qs, unquote, urlsplit

import hiredis

from gateway.backoff import backoff_s
from gateway.errors import QuotaUnanswered, QuotaUnavailable

logger = logging.getLogger(__name__)

_BACKOFF_S = (0.02, 0.05, 0.1, 0.25, 0.5, 1.0)
_MAX_PENDING = 50_000  # calls in flight: at 10,000/s that is far beyond the deadline


@dataclass(frozen=True, slots=True)
class RespAddress:
    """From ``unix:///path``, ``unix:///path?db=1`` or ``redis://[user:password@]host:port[/db]``."""

    path: str | None
    host: str
    port: int
    database: int
    username: str | None
    password: str | None = field(repr=False)

    @classmethod
    def parse(cls, url: str) -> "RespAddress":
        """Raises ValueError."""
        parts = urlsplit(url)
        if parts.scheme not in ("unix", "redis"):
            raise ValueError(f"expected a unix:// or redis:// URL, got scheme {parts.scheme!r}")
        is_unix = parts.scheme == "unix"
        database = parse_qs(parts.query).get("db", ["0"])[0] if is_unix else parts.path[1:]
        return cls(
            path=unquote(parts.path) if is_unix else None,
            host=parts.hostname or "127.0.0.1",
            port=6379 if parts.port is None else parts.port,
            database=int(database) if database else 0,
            username=None if parts.username is None else unquote(parts.username),
            password=None if parts.password is None else unquote(parts.password),
        )


def pack(*arguments: str | bytes | int) -> bytes:
    """One command in RESP."""
    return b"*%d\r\n%b" % (len(arguments), pack_arguments(*arguments))


def pack_arguments(*arguments: str | bytes | int) -> bytes:
    encoded = (a if isinstance(a, bytes) else str(a).encode() for a in arguments)
    return b"".join(b"$%d\r\n%b\r\n" % (len(a), a) for a in encoded)


class _Connection(asyncio.Protocol):
    def __init__(self, call_deadline_s: float) -> None:
        self._call_deadline_s = call_deadline_s
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._reader = hiredis.Reader()
        self._pending: deque[tuple[float, asyncio.Future[object]]] = deque()
        self._unsent: list[bytes] = []
        self._timer: asyncio.TimerHandle | None = None
        self.lost: asyncio.Future[None] = self._loop.create_future()

    def call(self, command: bytes) -> "asyncio.Future[object]":
        """The reply; an error reply is a ``hiredis.ReplyError`` value, not an exception."""
        future: asyncio.Future[object] = self._loop.create_future()
        if self._transport is None or len(self._pending) >= _MAX_PENDING:
            future.set_exception(QuotaUnavailable("The quota store is not reachable."))
            return future
        deadline_s = self._loop.time() + self._call_deadline_s
        self._pending.append((deadline_s, future))
        if not self._unsent:
            self._loop.call_soon(self._flush)
        self._unsent.append(command)
        if self._timer is None:
            self._timer = self._loop.call_at(deadline_s, self._check_oldest)
        return future

    def connection_made(  # type: ignore[override]  # uvloop's is a Transport in all but class
        self, transport: asyncio.Transport
    ) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        try:
            while (reply := self._reader.gets()) is not False:
                _, future = self._pending.popleft()
                if not future.done():  # else its caller was cancelled
                    future.set_result(reply)
        except (hiredis.HiredisError, IndexError):
            self.abort()  # not the protocol, or a reply that nobody asked for

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
        pending, self._pending = self._pending, deque()
        for _, future in pending:
            if not future.done():
                future.set_exception(QuotaUnanswered("The quota store did not answer."))
        if not self.lost.done():
            self.lost.set_result(None)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _flush(self) -> None:
        commands, self._unsent = self._unsent, []
        if self._transport is not None:
            self._transport.write(b"".join(commands))

    def _check_oldest(self) -> None:
        self._timer = None
        if not self._pending:
            return
        deadline_s = self._pending[0][0]
        if self._loop.time() >= deadline_s:
            self.abort()
        else:
            self._timer = self._loop.call_at(deadline_s, self._check_oldest)


class RespClient:
    """Keeps one connection; reconnects with growing pauses for as long as it runs."""

    def __init__(
        self, address: RespAddress, call_deadline_s: float, preload: Sequence[bytes] = ()
    ) -> None:
        """``preload``: commands sent on every new connection before any other."""
        self._address = address
        self._preload = preload
        self._call_deadline_s = call_deadline_s
        self._connection: _Connection | None = None
        self.connected = asyncio.Event()

    def call(self, command: bytes) -> "asyncio.Future[object]":
        """Fails with QuotaUnavailable at once without a connection, else by the deadline."""
        if self._connection is None:
            future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
            future.set_exception(QuotaUnavailable("The quota store is not reachable."))
            return future
        return self._connection.call(command)

    async def run(self) -> None:
        """Runs until cancelled."""
        failures = 0
        while True:
            connection = await self._connect()
            if connection is None:
                if failures == 0:
                    logger.error("quota store unreachable")
                failures += 1
                await asyncio.sleep(backoff_s(_BACKOFF_S, failures))
                continue
            failures = 0
            logger.info("quota store connected")
            await self._use(connection)

    async def _use(self, connection: _Connection) -> None:
        self._connection = connection
        self.connected.set()
        try:
            await connection.lost
            logger.warning("quota store connection lost")
        finally:
            self._connection = None
            self.connected.clear()
            connection.abort()

    async def _connect(self) -> _Connection | None:
        """``None`` if the store cannot be reached, or is reached but does not answer."""
        connection: _Connection | None = None
        try:
            async with asyncio.timeout(self._call_deadline_s * 4):
                connection = await self._open()
                for command in self._greeting():
                    reply = await connection.call(command)
                    _check_greeting(reply)
        except (OSError, TimeoutError, QuotaUnavailable):
            if connection is not None:
                connection.abort()
            return None
        return connection

    async def _open(self) -> _Connection:
        loop = asyncio.get_running_loop()
        if self._address.path is not None:
            _, connection = await loop.create_unix_connection(self._make, self._address.path)
        else:
            _, connection = await loop.create_connection(
                self._make, self._address.host, self._address.port
            )
        return connection

    def _make(self) -> _Connection:
        return _Connection(self._call_deadline_s)

    def _greeting(self) -> list[bytes]:
        commands = [pack("PING"), *self._preload]
        address = self._address
        if address.database:
            commands.insert(0, pack("SELECT", address.database))
        if address.password is not None:
            user = () if address.username is None else (address.username,)
            commands.insert(0, pack("AUTH", *user, address.password))
        return commands


def _check_greeting(reply: object) -> None:
    if isinstance(reply, hiredis.ReplyError):
        raise QuotaUnavailable("The quota store refused the greeting.")
