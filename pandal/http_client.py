"""The few plain HTTP/1.1 calls the launcher makes, over the standard library.

Blocking: call from a thread.  Every call has a deadline, of the whole answer or of each piece of a
streamed one, and a bounded answer.  ``http.client``'s exceptions become ours here.
"""

import http.client
import io
import socket
import time
import urllib.parse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import msgspec

from contracts.errors import UNDECODABLE
from pandal.errors import BadOption, Unreachable

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

T = TypeVar("T")

_LONGEST_BODY_BYTES = 1_048_576


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes

    def decode(self, type_: type[T]) -> T:
        """Raises Unreachable when the body is not the JSON that was expected."""
        try:
            return msgspec.json.decode(self.body, type=type_)
        except UNDECODABLE as exc:
            raise Unreachable(f"unexpected answer: {exc}") from exc


def parse_url(url: str, *, option: str) -> Address:
    """Raises BadOption unless ``url`` is ``http://HOST[:PORT]``."""
    expected = f"{option}: expected http://HOST:PORT, got {url!r}"
    try:
        parts = urllib.parse.urlsplit(url)
        port = parts.port
    except ValueError as exc:
        raise BadOption(expected) from exc
    is_plain = parts.scheme == "http" and parts.username is None and parts.path in {"", "/"}
    if not is_plain or parts.query or parts.fragment or port == 0:
        raise BadOption(expected)
    if not parts.hostname or ":" in parts.hostname:  # the gateway takes no IPv6 literals yet
        raise BadOption(expected)
    return Address(parts.hostname, 80 if port is None else port)


def get(
    address: Address, path: str, *, headers: Mapping[str, str] | None = None, timeout_s: float
) -> Answer:
    """Raises Unreachable, also when the whole answer has not come within ``timeout_s``."""
    ends_s = time.monotonic() + timeout_s
    with _exchange(address, timeout_s) as connection:
        connection.response_class = _due(ends_s)
        connection.request("GET", path, headers=dict(headers or {}))
        response = connection.getresponse()
        body = response.read(_LONGEST_BODY_BYTES + 1)
        # Of what the content length still promises a bounded read tells nobody.
        if response.length or len(body) > _LONGEST_BODY_BYTES:
            raise Unreachable(f"{address.url}{path}: the answer is cut off or too long")
        return Answer(response.status, _headers(response), body)


@dataclass(frozen=True, slots=True)
class Stream:
    status: int
    headers: Mapping[str, str]
    lines: Iterator[bytes]


@contextmanager
def post_streamed(
    address: Address, path: str, *, headers: Mapping[str, str], body: bytes, timeout_s: float
) -> Iterator[Stream]:
    """The answer line by line as it comes.  Raises Unreachable, also while it is read.

    A stream that is cut off just ends: whether it is whole, only its reader can know.
    """
    with _exchange(address, timeout_s) as connection:
        connection.request("POST", path, body=body, headers=dict(headers))
        response = connection.getresponse()
        yield Stream(response.status, _headers(response), _lines(response))


def _due(ends_s: float) -> type[http.client.HTTPResponse]:
    class Response(http.client.HTTPResponse):
        def __init__(self, sock: socket.socket, method: str | None = None) -> None:
            super().__init__(sock, method=method)
            self.fp = io.BufferedReader(_Due(sock, self.fp.detach(), ends_s))

    return Response


class _Due(io.RawIOBase):
    """What comes over a socket until then: however slowly, each byte in time for its own wait."""

    def __init__(self, sock: socket.socket, raw: io.RawIOBase, ends_s: float) -> None:
        self._sock, self._raw, self._ends_s = sock, raw, ends_s

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int | None:
        left_s = self._ends_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("timed out")
        self._sock.settimeout(left_s)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


def _lines(response: http.client.HTTPResponse) -> Iterator[bytes]:
    while line := response.readline(_LONGEST_BODY_BYTES):
        yield line


def _headers(response: http.client.HTTPResponse) -> dict[str, str]:
    return {name.lower(): value for name, value in response.getheaders()}


@contextmanager
def _exchange(address: Address, timeout_s: float) -> Iterator[http.client.HTTPConnection]:
    connection = http.client.HTTPConnection(address.host, address.port, timeout=timeout_s)
    try:
        yield connection
    except (OSError, http.client.HTTPException) as exc:
        reason = getattr(exc, "strerror", None) or str(exc) or type(exc).__name__
        raise Unreachable(f"{address.url}: {reason}") from exc
    finally:
        connection.close()
