"""A small pooled HTTP/1.1 client for the replicas: no scopes, no tasks on a warm connection."""

import asyncio
import functools
import ssl
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

import msgspec

from contracts.errors import UNDECODABLE
from contracts.names import HEADER_REQUEST_ID
from contracts.replica_api import AbortedUsage, abort_path
from gateway.completion import Completion
from gateway.errors import (
    UpstreamAnswerTooLarge,
    UpstreamError,
    UpstreamTimeout,
    UpstreamUnreachable,
)
from gateway.upstream.connection import UpstreamConnection
from gateway.upstream.response import UpstreamResponse

_MAX_IDLE_CONNECTIONS = 512  # per replica: more requests than one runs at a time
_CHECK_S = 0.1, 1.0  # between two looks at the deadlines of all connections
_CHECK_RATIO = 0.01  # of the shorter one
_MAX_CONTROL_ANSWER_BYTES = 1024 * 1024  # model lists and abort answers are far smaller


@dataclass(frozen=True, slots=True)
class Timeouts:
    connect_s: float
    head_s: float  # from the request to the end of the answer's headers
    idle_s: float  # between two reads of the answer
    keep_alive_s: float  # for a connection without a request; under the replica's own


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes


class _Dialling:
    """The source of an answer whose request waits for a connection: nothing can come yet."""

    def __init__(self, task: asyncio.Task[None]) -> None:
        self._task = task

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def abandon(self) -> None:
        self._task.cancel()


class ReplicaClient:
    """Connections of one replica.  Close it when done."""

    def __init__(
        self, name: str, url: str, timeouts: Timeouts, tls: ssl.SSLContext | None = None
    ) -> None:
        address = urlsplit(url)
        assert address.hostname is not None
        assert address.port is not None
        self.name = name
        self._host, self._port = address.hostname, address.port
        self._host_line = f"host: {self._host}:{self._port}\r\n".encode()
        self._timeouts = timeouts
        shorter_s = min(timeouts.head_s, timeouts.idle_s)
        self._check_s = min(max(_CHECK_S[0], _CHECK_RATIO * shorter_s), _CHECK_S[1])
        self._tls = tls
        self._idle: deque[UpstreamConnection] = deque()
        self._open: set[UpstreamConnection] = set()
        self._dialling: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._check: asyncio.TimerHandle | None = None  # None: all connections are idle

    def post(self, path: bytes, headers: bytes, body: bytes) -> UpstreamResponse:
        """Starts a request and returns at once.  ``headers``: complete lines."""
        return self._send(
            b"POST %b HTTP/1.1\r\n%b%bcontent-length: %d\r\n\r\n%b"
            % (path, self._host_line, headers, len(body), body)
        )

    def get(self, path: str) -> UpstreamResponse:
        return self._send(
            b"GET %b HTTP/1.1\r\n%baccept: application/json\r\n\r\n"
            % (path.encode(), self._host_line)
        )

    async def fetch(
        self, path: str, timeout_s: float, max_bytes: int = _MAX_CONTROL_ANSWER_BYTES
    ) -> Answer:
        """GET, whole.  Raises UpstreamError."""
        return await self._read_within(self.get(path), timeout_s, max_bytes)

    async def ask(self, path: bytes, body: bytes, timeout_s: float, max_bytes: int) -> Answer:
        """POST of JSON, whole.  Raises UpstreamError."""
        response = self.post(path, b"content-type: application/json\r\n", body)
        return await self._read_within(response, timeout_s, max_bytes)

    async def abort(self, request_id: str, timeout_s: float) -> AbortedUsage | None:
        """What the request had used when it stopped; ``None`` if the replica cannot say."""
        headers = f"{HEADER_REQUEST_ID}: {request_id}\r\n".encode()
        try:
            answer = await self._read_within(
                self.post(abort_path(request_id).encode(), headers, b""), timeout_s
            )
            if answer.status != 200:
                return None
            return msgspec.json.decode(answer.body, type=AbortedUsage)
        except (UpstreamError, *UNDECODABLE):
            return None

    async def close(self) -> None:
        if self._check is not None:
            self._check.cancel()
        for task in self._dialling:
            task.cancel()
        for connection in list(self._open):
            connection.close()
        await asyncio.gather(*self._dialling, return_exceptions=True)

    async def _read_within(
        self,
        response: UpstreamResponse,
        timeout_s: float,
        max_bytes: int = _MAX_CONTROL_ANSWER_BYTES,
    ) -> Answer:
        try:
            async with asyncio.timeout(timeout_s):
                await response.head
                return Answer(response.status, await read_body(response, max_bytes))
        except TimeoutError as exc:
            raise UpstreamTimeout("The replica did not answer in time.") from exc
        finally:
            response.cancel()

    # The pool

    def _send(self, request: bytes) -> UpstreamResponse:
        response = UpstreamResponse(request)
        oldest_s = self._loop.time() - self._timeouts.keep_alive_s
        while self._idle:
            connection = self._idle.pop()  # the warmest
            if connection.idle_since_s > oldest_s and not connection.is_closing():
                connection.send(response)
                break
            connection.close()  # the replica may be about to close it
        else:
            self._dial(response)
        if self._check is None:
            self._check_soon()
        return response

    def _check_soon(self) -> None:
        self._check = self._loop.call_later(self._check_s, self._check_deadlines)

    def _check_deadlines(self) -> None:
        """Looks again later, also if somebody raises who learns here that his time is up."""
        now_s = self._loop.time()
        self._check = None
        try:
            for connection in list(self._open):
                connection.check_deadline(now_s)
        finally:
            is_busy = self._dialling or len(self._open) > len(self._idle)
            if is_busy and self._check is None:
                self._check_soon()

    def _dial(self, response: UpstreamResponse) -> None:
        response.is_sent = False  # what was written to a dead connection does not count
        task = self._loop.create_task(self._connect(response))
        response.source = _Dialling(task)
        self._dialling.add(task)
        task.add_done_callback(functools.partial(self._dialled, response))

    def _dialled(self, response: UpstreamResponse, task: asyncio.Task[None]) -> None:
        self._dialling.discard(task)
        if task.cancelled():
            response.fail(UpstreamUnreachable("cancelled"))

    async def _connect(self, response: UpstreamResponse) -> None:
        try:
            async with asyncio.timeout(self._timeouts.connect_s):
                _, connection = await self._loop.create_connection(
                    self._new_connection, self._host, self._port, ssl=self._tls
                )
        except (OSError, TimeoutError):
            response.source = None
            response.fail(UpstreamUnreachable(f"Replica {self.name!r} cannot be reached."))
            return
        self._open.add(connection)
        connection.send(response)

    def _new_connection(self) -> UpstreamConnection:
        return UpstreamConnection(
            on_idle=self._keep,
            on_closed=self._forget,
            on_stale=self._dial,
            head_timeout_s=self._timeouts.head_s,
            idle_timeout_s=self._timeouts.idle_s,
        )

    def _keep(self, connection: UpstreamConnection) -> None:
        if len(self._idle) < _MAX_IDLE_CONNECTIONS:
            self._idle.append(connection)
        else:
            connection.close()

    def _forget(self, connection: UpstreamConnection) -> None:
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)


Watch = Callable[[Completion[bytes]], Awaitable[bytes]]


async def _plain_wait(completion: Completion[bytes]) -> bytes:
    return await completion


async def read_body(
    response: UpstreamResponse, max_bytes: int, watch: Watch = _plain_wait
) -> bytes:
    """The whole body.  Raises UpstreamError, also if it is larger than ``max_bytes``.

    ``watch`` waits for a chunk and may end the wait by raising.
    """
    parts: list[bytes] = []
    num_bytes = 0
    while not response.is_exhausted and (chunk := await watch(response.next_chunk())):
        num_bytes += len(chunk)
        if num_bytes > max_bytes:
            response.cancel()
            raise _too_large(max_bytes)
        parts.append(chunk)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def whole_body(response: UpstreamResponse, max_bytes: int) -> bytes:
    """As ``read_body``, of an answer that has ended."""
    body = response.take()
    if len(body) > max_bytes:
        raise _too_large(max_bytes)
    return body


def _too_large(max_bytes: int) -> UpstreamAnswerTooLarge:
    return UpstreamAnswerTooLarge(f"The replica's answer is larger than {max_bytes} bytes.")
