"""Reading from the API server, and no more: one connection for each question or watch.

The official client is the autoscaler's; a gateway asks for one kind of object and would carry the
whole of it.  The token is read anew for each question, for Kubernetes replaces it every hour.
"""

import asyncio
import ssl
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlencode, urlsplit

import httptools

_READ_BYTES: Final = 64 * 1024


class ApiFailure(Exception):
    """The API server could not be asked, or refused."""


class Expired(ApiFailure):
    """What was to be resumed is history."""


@dataclass(frozen=True, slots=True)
class ApiServer:
    url: str
    ca_file: Path
    token_file: Path


class KubernetesClient:
    def __init__(self, server: ApiServer, timeout_s: float) -> None:
        self._server = server
        self._timeout_s = timeout_s
        parts = urlsplit(server.url)
        self._host = parts.hostname or ""
        self._port = 443 if parts.port is None else parts.port

    async def get(self, path: str, **query: str) -> bytes:
        """Raises ApiFailure."""
        body = b""
        async with aclosing(self._body(path, query, silence_s=self._timeout_s)) as parts:
            async for part in parts:
                body += part
        return body

    async def lines(
        self, path: str, *, silence_s: float, **query: str
    ) -> AsyncGenerator[bytes, None]:
        """Of a watch, until the server ends it; ``silence_s`` without a byte is a failure."""
        rest = b""
        async with aclosing(self._body(path, query, silence_s=silence_s)) as parts:
            async for part in parts:
                *lines, rest = (rest + part).split(b"\n")
                for line in lines:
                    yield line

    async def _body(
        self, path: str, query: dict[str, str], *, silence_s: float
    ) -> AsyncGenerator[bytes, None]:
        answer = _Answer()
        try:
            async with self._connected() as (reader, writer):
                writer.write(self._request(path, query))
                while not answer.is_complete:
                    async with asyncio.timeout(silence_s):
                        data = await reader.read(_READ_BYTES)
                    if not data:
                        raise ApiFailure(f"{path}: the answer ended before its end")
                    answer.feed(data)
                    if answer.status >= 400 and answer.is_complete:
                        raise _refusal(path, answer.status)
                    if answer.status < 400 and answer.parts:
                        yield answer.take()
        except (OSError, TimeoutError, ssl.SSLError, httptools.HttpParserError) as exc:
            raise ApiFailure(f"{path}: {type(exc).__name__}") from exc

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        context = ssl.create_default_context(cafile=self._server.ca_file)
        async with asyncio.timeout(self._timeout_s):
            reader, writer = await asyncio.open_connection(self._host, self._port, ssl=context)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()

    def _request(self, path: str, query: dict[str, str]) -> bytes:
        token = self._server.token_file.read_text().strip()
        target = f"{path}?{urlencode(query)}" if query else path
        return (
            f"GET {target} HTTP/1.1\r\nhost: {self._host}:{self._port}\r\n"
            f"authorization: Bearer {token}\r\naccept: application/json\r\n"
            "connection: close\r\n\r\n"
        ).encode()


class _Answer:
    """As ``httptools`` calls it back."""

    def __init__(self) -> None:
        self.status = 0
        self.is_complete = False
        self.parts: list[bytes] = []
        self._parser = httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def take(self) -> bytes:
        whole, self.parts = b"".join(self.parts), []
        return whole

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self.parts.append(body)

    def on_message_complete(self) -> None:
        self.is_complete = True


def _refusal(path: str, status: int) -> ApiFailure:
    """Without the server's message: it may quote what was sent."""
    failure = Expired if status == 410 else ApiFailure
    return failure(f"{path}: {status}")
