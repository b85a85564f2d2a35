"""Cuts a byte stream of server-sent events at event boundaries, without decoding it.

Follows the WHATWG grammar (https://html.spec.whatwg.org/multipage/server-sent-events.html): lines
end in CRLF, LF or CR, an empty line ends an event, ``data:`` may be followed by one space.  The
result does not depend on how the bytes were cut into chunks: a CR at the end of a chunk waits for
the byte that tells whether it is half of a CRLF.
"""

import re
from collections.abc import Iterator

DONE = b"[DONE]"

# A line end that ends an event: one after another.  The lookahead keeps CRLF in one piece.
_LINE_END = rb"(?:\r\n|\n|\r(?=[^\n]))"
_BOUNDARY = re.compile(_LINE_END + _LINE_END)
_LF_BOUNDARY = re.compile(rb"\n\n")  # as nearly every server ends them; found far faster
_LINES = re.compile(rb"\r\n|\n|\r")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class EventTooLarge(ValueError):
    """An event outgrew the bound; the stream is not worth more memory."""


class EventSplitter:
    def __init__(self, max_event_bytes: int) -> None:
        self._max_event_bytes = max_event_bytes
        self.rest = b""  # held back: the beginning of an event
        self._scanned = 0  # bytes of the rest known to hold no boundary

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Whole events with their terminators.  Raises EventTooLarge."""
        buffer = self.rest + chunk
        boundary = _LF_BOUNDARY if b"\r" not in buffer else _BOUNDARY
        start, scan = 0, self._scanned
        while (match := boundary.search(buffer, scan)) is not None:
            yield buffer[start : match.end()]
            start = scan = match.end()
        self.rest = buffer[start:]
        self._scanned = max(0, len(self.rest) - 3)  # a boundary is at most four bytes long
        if len(self.rest) > self._max_event_bytes:
            raise EventTooLarge(f"a server-sent event of over {self._max_event_bytes} bytes")

    def flush(self) -> bytes:
        """What is left at the end of the stream: an event only if a held CR ended it."""
        rest, self.rest, self._scanned = self.rest, b"", 0
        return rest


def event_payload(event: bytes) -> bytes | None:
    """The joined ``data`` lines of one event, or ``None`` if it has none (a comment, say)."""
    if event.startswith(_BYTE_ORDER_MARK):
        event = event[len(_BYTE_ORDER_MARK) :]
    if event.startswith(b"data: ") and event.endswith(b"\n\n"):
        payload = event[6:-2]
        if b"\n" not in payload and b"\r" not in payload:
            return payload  # as nearly every server writes it
    lines = [line for line in _LINES.split(event) if line == b"data" or line.startswith(b"data:")]
    if not lines:
        return None
    return b"\n".join(line[5:].removeprefix(b" ") for line in lines)
