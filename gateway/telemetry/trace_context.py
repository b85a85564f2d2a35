"""W3C Trace Context, level 1: who called us, and who we are to those that we call.

https://www.w3.org/TR/trace-context/
"""

import re
from typing import Final

import msgspec

_TRACEPARENT: Final = re.compile(
    rb"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?"
)
_INVALID_VERSION: Final = b"ff"
_SAMPLED: Final = 1
SAMPLED: Final = "01"
UNSAMPLED: Final = "00"
# Of a request's 32 digits, which are the id of a trace that it begins: the id of its span.
SPAN_ID: Final = slice(16, None)


class SpanContext(msgspec.Struct, frozen=True):
    """In lower-case hexadecimal."""

    trace_id: str
    span_id: str
    parent_id: str | None  # None: the trace begins here
    is_sampled: bool

    def header(self) -> bytes:
        flags = SAMPLED if self.is_sampled else UNSAMPLED
        return f"00-{self.trace_id}-{self.span_id}-{flags}".encode()


class Sampler:
    """Of traces that begin here: a request's own digits decide, ``digits``."""

    def __init__(self, ratio: float) -> None:
        self._below = f"{int(ratio * 2**32):08x}" if ratio < 1 else "g"  # of as many digits

    def takes(self, digits: str) -> bool:
        return digits[-8:] < self._below

    def context(self, traceparent: bytes | None, digits: str) -> SpanContext:
        """A caller decides whether it is sampled, else we do."""
        if traceparent is not None and (parent := _parsed(traceparent)) is not None:
            trace_id, parent_id, is_sampled = parent
            return SpanContext(trace_id, digits[SPAN_ID], parent_id, is_sampled)
        return SpanContext(digits, digits[SPAN_ID], None, self.takes(digits))


def new_trace_line(digits: str, flags: str) -> bytes:
    """The header of a trace that begins with the request of these digits, also if nobody looks."""
    return f"traceparent: 00-{digits}-{digits[SPAN_ID]}-{flags}\r\n".encode()


def _parsed(traceparent: bytes) -> tuple[str, str, bool] | None:
    """What is malformed is ignored, as the specification asks: the trace begins anew."""
    match = _TRACEPARENT.fullmatch(traceparent)
    if match is None or traceparent.startswith(_INVALID_VERSION):
        return None
    if traceparent.startswith(b"00") and len(traceparent) != 55:
        return None
    trace_id, parent_id = match[1].decode(), match[2].decode()
    if not trace_id.strip("0") or not parent_id.strip("0"):
        return None
    return trace_id, parent_id, bool(int(match[3], 16) & _SAMPLED)
