"""The head of a request: read once, and known when the same connection sends it again.

A client repeats its header lines, byte by byte, with every request of a connection, but for the
length of the body.  So a head is taken apart once, by the parser, which is strict; what is the same
but for the digits of its length means the same.
"""

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from contracts.names import HEADER_EXPLAIN, HEADER_SESSION_ID
from gateway.api.context import Operation
from gateway.errors import InvalidRequest

Header = tuple[bytes, bytes]

TRACEPARENT: Final = b"traceparent"
_TRACESTATE: Final = b"tracestate"
FORWARDED_HEADERS: Final = frozenset({b"accept", TRACEPARENT, _TRACESTATE})
_SESSION: Final = HEADER_SESSION_ID.encode()
_CACHE: Final = b"x-pandal-cache"
_IDEMPOTENCY_KEY: Final = b"idempotency-key"
_AUTHORIZATION: Final = b"authorization"
_SINGLE: Final = frozenset(
    {_AUTHORIZATION, _SESSION, _IDEMPOTENCY_KEY, _CACHE, HEADER_EXPLAIN.encode()}
)
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*", re.IGNORECASE)
_END: Final = b"\r\n\r\n"
_MOST_DIGITS: Final = 9


class RequestHead(msgspec.Struct, frozen=True, eq=False):
    operation: Operation
    headers: Sequence[Header]  # names in lower case; without the body's length
    authorization: bytes | None
    session: bytes | None
    forwarded: bytes  # lines for the replica
    is_traced: bool  # says something of a trace
    idempotency_key: bytes | None
    cache: bytes | None  # the request's own word on it
    keep_alive: bool
    is_chunking_understood: bool  # HTTP/1.0 clients do not


def request_head(
    operation: Operation,
    headers: Sequence[Header],
    *,
    keep_alive: bool = True,
    is_chunking_understood: bool = True,
) -> RequestHead:
    """To the replica goes an allow-list: the client's key and cookies are none of its business."""
    kept = tuple(header for header in headers if header[0] != b"content-length")
    first = dict(reversed(kept))  # of each name
    return RequestHead(
        operation,
        kept,
        first.get(_AUTHORIZATION),
        first.get(_SESSION),
        _forwarded(kept),
        TRACEPARENT in first or _TRACESTATE in first,
        first.get(_IDEMPOTENCY_KEY),
        first.get(_CACHE),
        keep_alive,
        is_chunking_understood,
    )


def repetition(headers: Sequence[Header]) -> InvalidRequest | None:
    """Two could be taken for two requests, by us and by whoever is before us.

    ``None``: none of those that decide came twice.
    """
    names = [name for name, _ in headers if name in _SINGLE]
    for name in names:
        if names.count(name) > 1:
            return InvalidRequest(f"Send the header '{name.decode()}' once.")
    return None


def traced_lines(head: RequestHead, traceparent: bytes, *, is_new: bool) -> bytes:
    """Those for the replica, which is told of another caller.

    ``is_new``: the trace begins here, and what is said of the state of another is of no use.
    """
    told_anew = (TRACEPARENT, _TRACESTATE) if is_new else (TRACEPARENT,)
    kept = [header for header in head.headers if header[0] not in told_anew]
    return _forwarded((*kept, (TRACEPARENT, traceparent)))


def _forwarded(headers: Sequence[Header]) -> bytes:
    return b"".join(b"%b: %b\r\n" % header for header in headers if header[0] in FORWARDED_HEADERS)


class KnownHead:
    """A head that was accepted, as it came, around the digits of the body's length."""

    def __init__(self, head: RequestHead, before: bytes, after: bytes) -> None:
        self.head = head
        self._before, self._start = before, len(before)
        self._after, self._num_after = after, len(after)

    def split(self, data: bytes) -> tuple[int, bytes] | None:
        """The length of the body, and what has come of it; ``None``: ``data`` begins otherwise."""
        if not data.startswith(self._before):
            return None
        start = self._start
        end = data.find(b"\r", start, start + _MOST_DIGITS + 1)
        if end < 0 or not data.startswith(self._after, end):
            return None
        digits = data[start:end]
        return (int(digits), data[end + self._num_after :]) if digits.isdigit() else None


def known_head(head: RequestHead, data: bytes, num_body_bytes: int) -> KnownHead | None:
    """``data``: what the parser was given, with so many bytes of the body behind the head.

    ``None`` where the head is not all of the rest, or its length is not written plainly.
    """
    end = data.find(_END) + len(_END)
    lengths = list(_LENGTH.finditer(data, 0, end))
    if end < len(_END) or len(data) - end != num_body_bytes or len(lengths) != 1:
        return None
    start = lengths[0].end()
    digits_end = data.index(b"\r", start)
    if not data[start:digits_end].isdigit() or digits_end - start > _MOST_DIGITS:
        return None
    return KnownHead(head, data[:start], data[digits_end:end])
