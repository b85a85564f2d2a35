"""A pipelined connection to the quota store: one write per tick of the event loop.

Replies come back in order, so a call is a completion in a queue.  A call that outlives its deadline
takes the connection with it: on a pipelined connection nothing behind it can be trusted to come.
"""

import asyncio
import logging
import ssl
from collections import deque
from collections.abc import Callable, Sequence

import hiredis

from gateway.admission.resp_tls import client_context, told_refusals
from gateway.backoff import backoff_s
from gateway.completion import Completion
from gateway.errors import QuotaRefused, QuotaUnanswered, QuotaUnavailable
from gateway.resp_address import RespAddress

logger = logging.getLogger(__name__)

_BACKOFF_S = (0.02, 0.05, 0.1, 0.25, 0.5, 1.0)
_TOLD_FROM = 6  # failures before a first connection: both may be starting, for about a second
_SECOND_LOOK_S = 0.002  # two turns of the event loop
_ADVICE = {  # for whoever reads the log
    "NOPERM": "its user must be allowed SCRIPT LOAD, EVALSHA, EVAL, and all keys",
    "READONLY": "this is a replica: name its primary",
}
_WHILE_LOST = {  # by name
    "quota store": "local shares decide until it is back, or their lease ends",
    "policy store": "the last good policy stays in force until it is back",
    "store of idempotency keys": "each gateway keeps its own until it is back",
}
_PROVEN_S = 1.0  # a connection that lived shorter was no recovery
_CONNECT_S = 1.0  # at most, to one server: the next may be the one that lives
_MAX_PENDING = 50_000  # calls in flight: at 10,000/s that is far beyond the deadline


def pack(*arguments: str | bytes | int) -> bytes:
    """One command in RESP."""
    return b"*%d\r\n%b" % (len(arguments), pack_arguments(*arguments))


def pack_arguments(*arguments: str | bytes | int) -> bytes:
    encoded = (a if isinstance(a, bytes) else str(a).encode() for a in arguments)
    return b"".join(b"$%d\r\n%b\r\n" % (len(a), a) for a in encoded)


def error_text(reply: object) -> str | None:
    """Of an error reply; None for any other."""
    return str(reply) if isinstance(reply, hiredis.ReplyError) else None


def first_word(reply: object) -> str | None:
    """Of an error reply: WRONGPASS, LOADING, OOM, ...; None for any other.

    The rest may quote a command, and with it a password.
    """
    return str(reply).split(" ", 1)[0] if isinstance(reply, hiredis.ReplyError) else None


class _Connection(asyncio.Protocol):
    def __init__(self, call_deadline_s: float) -> None:
        self._call_deadline_s = call_deadline_s
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._reader = hiredis.Reader()
        self._pending: deque[tuple[float, Completion[object]]] = deque()
        self._unsent: list[bytes] = []
        self._before_flush: list[Callable[[], None]] = []
        self._is_flush_due = False
        self._deadline_s = 0.0  # of what is written next
        self._timer: asyncio.TimerHandle | None = None
        self.lost: Completion[None] = Completion()

    def call(self, command: bytes) -> Completion[object]:
        """The reply; an error reply is a ``hiredis.ReplyError`` value, not an exception."""
        reply: Completion[object] = Completion()
        if self._transport is None or len(self._pending) >= _MAX_PENDING:
            reply.fail(QuotaUnavailable("The quota store is not reachable."))
            return reply
        if not self._is_flush_due:
            self._flush_soon()
        self._pending.append((self._deadline_s, reply))
        self._unsent.append(command)
        if self._timer is None:
            self._timer = self._loop.call_at(self._deadline_s, self._check_oldest)
        return reply

    def before_flush(self, callback: Callable[[], None]) -> None:
        """Calls it once, just before the next write: for calls that join until then."""
        self._before_flush.append(callback)
        if not self._is_flush_due:
            self._flush_soon()

    def connection_made(  # type: ignore[override]  # uvloop's is a Transport in all but class
        self, transport: asyncio.Transport
    ) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Parses before it resolves: what a waiter raises is no fault of the store's."""
        for reply in self._parse(data):
            if not self._pending:
                self.abort()  # nobody asked for it
                return
            self._pending.popleft()[1].resolve(reply)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
        pending, self._pending = self._pending, deque()
        for _, reply in pending:
            fault = QuotaUnanswered("The quota store did not answer.")
            fault.__cause__ = exc
            reply.fail(fault)
        self.lost.resolve(None)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _parse(self, data: bytes) -> list[object]:
        """The replies that are whole; bytes that are not the protocol end the connection."""
        replies: list[object] = []
        self._reader.feed(data)
        try:
            while (reply := self._reader.gets()) is not False:
                replies.append(reply)
        except hiredis.HiredisError:
            self.abort()
        return replies

    def _flush_soon(self) -> None:
        self._is_flush_due = True
        self._deadline_s = self._loop.time() + self._call_deadline_s
        self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        try:
            self._call_back()
        finally:
            self._is_flush_due = False
            commands, self._unsent = self._unsent, []
            if commands and self._transport is not None:
                self._transport.write(b"".join(commands))
            if self._before_flush:
                self._flush_soon()

    def _call_back(self) -> None:
        """Those behind one that raises have their turn at the next write."""
        callbacks, self._before_flush = self._before_flush, []
        try:
            while callbacks:
                callbacks.pop(0)()
        finally:
            self._before_flush[:0] = callbacks

    def _check_oldest(self, overdue_since_s: float | None = None) -> None:
        """Looks twice: when we ourselves are late, the answer may lie in the socket already."""
        self._timer = None
        if not self._pending:
            return
        deadline_s, now_s = self._pending[0][0], self._loop.time()
        if now_s < deadline_s:
            self._timer = self._loop.call_at(deadline_s, self._check_oldest)
        elif overdue_since_s is not None and deadline_s <= overdue_since_s:
            self.abort()
        else:
            self._timer = self._loop.call_later(_SECOND_LOOK_S, self._check_oldest, now_s)


class RespClient:
    """Keeps one connection; reconnects with growing pauses for as long as it runs."""

    def __init__(
        self,
        address: RespAddress,
        call_deadline_s: float,
        preload: Sequence[bytes] = (),
        *,
        name: str = "quota store",
    ) -> None:
        """``preload``: commands sent on every new connection before any other.

        ``name``: what the log calls it.
        """
        self._address = address
        self._name = name
        self._says_connected, self._says_unusable = f"{name} connected", f"{name} not usable"
        self._preload = preload
        self._call_deadline_s = call_deadline_s
        self._connect_deadline_s = min(_CONNECT_S, 4 * call_deadline_s)
        self._connection: _Connection | None = None
        self._sentinels = deque(address.sentinels)  # whoever answered last is asked first
        self._tls: ssl.SSLContext | None = None
        self._fault: str | None = None
        self.refusal: QuotaRefused | None = None  # what the last attempt met, if not silence
        self._was_connected = False
        self.connected = asyncio.Event()
        self.call: Callable[[bytes], Completion[object]] = _call_nobody
        """Fails with QuotaUnavailable at once without a connection, else by the deadline."""

    @property
    def where(self) -> str:
        """For people; holds no password."""
        return self._address.words

    def before_flush(self, callback: Callable[[], None]) -> None:
        """Calls it once, just before the next write; at once without a connection."""
        if self._connection is None:
            callback()
        else:
            self._connection.before_flush(callback)

    async def run(self) -> None:
        """Runs until cancelled."""
        num_failures = 0
        while True:
            try:
                connection = await self._connect()
            except (OSError, QuotaUnavailable) as exc:
                num_failures += 1
                self.refusal = exc if isinstance(exc, QuotaRefused) else None
                if self.refusal is not None:
                    self._tell(self.refusal.reason, self.refusal.detail)
                elif self._was_connected or num_failures >= _TOLD_FROM:
                    self._tell("unreachable")
                await asyncio.sleep(backoff_s(_BACKOFF_S, num_failures))
                continue
            logger.info(self._says_connected, extra={"path": self._address.words})
            self._fault, self.refusal, self._was_connected = None, None, True
            if await self._use(connection) >= _PROVEN_S:
                num_failures = 0
            else:  # a store that is only too slow must not be called over and over
                num_failures += 1
                await asyncio.sleep(backoff_s(_BACKOFF_S, num_failures))

    def _tell(self, fault: str, detail: str | None = None) -> None:
        is_told = fault == self._fault or (fault, self._fault) == ("unreachable", "lost")
        if not is_told:  # once per outage and reason, not once per attempt
            advice = _WHILE_LOST.get(self._name) if fault == "lost" else _ADVICE.get(fault)
            fields = {"reason": fault, "error": detail or advice, "path": self._address.words}
            logger.error(self._says_unusable, extra=fields)
        self._fault = fault

    async def _use(self, connection: _Connection) -> float:
        """How long it lasted, in seconds."""
        loop = asyncio.get_running_loop()
        self._connection, began_s = connection, loop.time()
        self.call = connection.call
        self.connected.set()
        try:
            await connection.lost
            self._tell("lost")
            return loop.time() - began_s
        finally:
            self._connection, self.call = None, _call_nobody
            self.connected.clear()
            connection.abort()

    async def _connect(self) -> _Connection:
        """Raises OSError, QuotaUnavailable; QuotaRefused if the store answers, but not to us."""
        if self._address.tls is not None:
            self._tls = await asyncio.to_thread(client_context, self._address.tls)
        place = (self._address.host, self._address.port)
        if self._sentinels:
            place = await self._primary()
        async with asyncio.timeout(self._connect_deadline_s):
            connection = await self._open(*place)
            try:
                with told_refusals():
                    for command in self._greeting():
                        _check_greeting(await connection.call(command))
                if self._sentinels:
                    _check_role(await connection.call(pack("ROLE")))
            except BaseException:
                connection.abort()
                raise
        return connection

    async def _open(self, host: str, port: int) -> _Connection:
        loop = asyncio.get_running_loop()
        if self._address.path is not None:
            _, connection = await loop.create_unix_connection(self._make, self._address.path)
        else:
            with told_refusals():
                _, connection = await loop.create_connection(self._make, host, port, ssl=self._tls)
        return connection

    async def _primary(self) -> tuple[str, int]:
        """By the first Sentinel that knows it.

        Raises QuotaUnavailable; QuotaRefused if none knows it and one was refused or refuses.

        https://redis.io/docs/latest/develop/reference/sentinel-clients/
        """
        address = self._address
        question = pack("SENTINEL", "GET-MASTER-ADDR-BY-NAME", address.service)
        fault = QuotaUnavailable("No Sentinel knows where the quota store is.")
        for _ in range(len(self._sentinels)):
            try:
                async with asyncio.timeout(self._connect_deadline_s):
                    sentinel = await self._open(*self._sentinels[0])
                    try:
                        with told_refusals():
                            for command in _auth(
                                address.sentinel_username, address.sentinel_password
                            ):
                                _check_greeting(await sentinel.call(command))
                            found = await sentinel.call(question)
                    finally:
                        sentinel.abort()
                if isinstance(found, list):
                    host, port = found
                    return host.decode(), int(port)
                _check_greeting(found)
            except QuotaRefused as exc:
                fault = exc
            except (OSError, QuotaUnavailable):
                pass  # a deadline's, too: the next one is asked
            self._sentinels.rotate(-1)
        raise fault

    def _make(self) -> _Connection:
        return _Connection(self._call_deadline_s)

    def _greeting(self) -> list[bytes]:
        commands = [pack("PING"), *self._preload]
        address = self._address
        if address.database:
            commands.insert(0, pack("SELECT", address.database))
        return [*_auth(address.username, address.password), *commands]


def _auth(username: str | None, password: str | None) -> list[bytes]:
    """Nothing to say without a password."""
    if password is None:
        return []
    return [pack("AUTH", *(() if username is None else (username,)), password)]


def _check_role(reply: object) -> None:
    """Sentinels may be behind what has happened."""
    if not isinstance(reply, list) or reply[0] != b"master":
        raise QuotaRefused("READONLY")


def _call_nobody(_: bytes) -> Completion[object]:
    reply: Completion[object] = Completion()
    reply.fail(QuotaUnavailable("The quota store is not reachable."))
    return reply


def _check_greeting(reply: object) -> None:
    refusal = first_word(reply)
    if refusal is not None and refusal != "MOVED":  # that is a cluster's other node
        raise QuotaRefused(refusal)
