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


class SpanContext(msgspec.Struct, frozen=True):
    """In lower-case hexadecimal."""

    trace_id: str
    span_id: str
    parent_id: str | None  # None: the trace begins here
    is_sampled: bool

    def header(self) -> bytes:
        return f"00-{self.trace_id}-{self.span_id}-{'01' if self.is_sampled else '00'}".encode()


def span_context(traceparent: bytes | None, digits: str, sample_ratio: float) -> SpanContext:
    """``digits``: 32 of a request's own.  A caller decides whether it is sampled, else we do."""
    if traceparent is not None and (parent := _parsed(traceparent)) is not None:
        trace_id, parent_id, is_sampled = parent
        return SpanContext(trace_id, digits[16:], parent_id, is_sampled)
    is_sampled = int(digits[-8:], 16) < sample_ratio * 2**32
    return SpanContext(digits, digits[16:], None, is_sampled)


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
