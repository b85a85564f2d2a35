"""The generator's HTTP side: a pool of connections to one target."""

import asyncio
import os
import ssl
from collections.abc import Callable

from pandal.bench.answer import Answer
from pandal.bench.connection import Connection
from pandal.bench.target import Target

_CONNECT_TIMEOUT_S = 10.0
# A server's close that was under way when a request was written is here within a round trip; one
# that comes later is the server's answer to it.
_ALREADY_CLOSED_S = 0.05


class Client:
    """Connections are opened as needed, kept, and closed by ``close``."""

    def __init__(self, target: Target, clock_s: Callable[[], float], max_connections: int) -> None:
        self._target = target
        self._clock_s = clock_s
        self._ssl = ssl.create_default_context() if target.is_tls else None
        self._idle: list[Connection] = []
        self._free = asyncio.Semaphore(max_connections)
        self.num_waits_for_a_connection = 0
        self.first_wait_s: float | None = None  # for a connection, on the run's clock
        self.num_resent = 0
        self.last_failure: str | None = None  # to get or to keep a connection

    async def ask(self, head: bytes, body: bytes, timeout_s: float) -> Answer:
        """Never raises for what the server does: the answer's outcome says it."""
        if self._free.locked():
            self.num_waits_for_a_connection += 1
            self.first_wait_s = self._clock_s() if self.first_wait_s is None else self.first_wait_s
        whole_head = b"%b%d\r\n\r\n" % (head, len(body))
        async with self._free:
            answer = Answer()
            try:
                async with asyncio.timeout(timeout_s):
                    await self._exchange(whole_head, body, answer)
            except OSError as exc:  # without a connection the answer has no status, which says so
                answer.is_timed_out = isinstance(exc, TimeoutError)
                self.last_failure = _in_words(exc)
        if answer.ended_s is None:
            answer.ended_s = self._clock_s()
        return answer

    def close(self) -> None:
        for connection in self._idle:
            connection.abort()
        self._idle.clear()

    async def _exchange(self, head: bytes, body: bytes, answer: Answer) -> None:
        kept = self._kept_connection()
        if kept is not None:
            written_s = self._clock_s()
            await self._exchange_on(kept, head, body, answer)
            if kept.has_answered or self._clock_s() - written_s > _ALREADY_CLOSED_S:
                return
            self.num_resent += 1  # the server had closed it while it was idle
        await self._exchange_on(await self._connect(), head, body, answer)

    async def _exchange_on(
        self, connection: Connection, head: bytes, body: bytes, answer: Answer
    ) -> None:
        await connection.exchange(head, body, answer)
        if connection.is_usable:
            self._idle.append(connection)

    def _kept_connection(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable:
                return connection
        return None

    async def _connect(self) -> Connection:
        async with asyncio.timeout(_CONNECT_TIMEOUT_S):
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: Connection(self._clock_s),
                self._target.host,
                self._target.port,
                ssl=self._ssl,
            )
        return connection


def _in_words(exc: OSError) -> str:
    """asyncio says "Connect call failed", whatever the system has said."""
    if isinstance(exc, TimeoutError):
        return "no answer in time"
    if isinstance(exc, ConnectionError) and exc.errno is not None:
        return os.strerror(exc.errno).lower()
    return exc.strerror or str(exc)
