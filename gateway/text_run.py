"""The events of one stream that differ in their text alone.

Nearly all of a stream's do.  One of them has been looked at closely; what begins and ends as it
does, and has no more than a text in between, is counted, and sent on in the frame it came in.
"""

import re
from typing import Final

from gateway.exchange import Exchange
from gateway.upstream.response import Taker

_TEXT: Final = re.compile(
    rb'"(?:content|text|reasoning_content|reasoning|arguments)"\s*:\s*"([^"\\]+)"'
)
_QUOTE, _LF, _CR = b'"\n\r'  # none is in a JSON string as itself: it would end it, or the event
_NEVER: Final = -1


class TextRun:
    # All that is looked at for each chunk, in one place.
    __slots__ = (
        "_exchange",
        "_num_around",
        "_num_events",
        "_otherwise",
        "_prefix",
        "_suffix",
        "_write",
    )

    def __init__(self, exchange: Exchange, otherwise: Taker) -> None:
        """``otherwise`` takes what is no such event, out of its frame."""
        self._exchange = exchange
        self._write = exchange.framed_writer
        self._otherwise: Taker | None = otherwise  # None: it is over
        self._prefix = self._suffix = b""
        self._num_around = _NEVER  # bytes of an event around its text
        self._num_events = 0  # that it has sent, each with text

    def learn(self, event: bytes) -> None:
        """One that is plain, and has been counted and sent."""
        text = _TEXT.search(event)
        if text is None or self._write is None or event.find(_LF) != len(event) - 2:
            return
        begin, end = text.span(1)
        self._prefix, self._suffix = event[:begin], event[end:]
        self._num_around = len(event) - (end - begin)

    def end(self) -> int:
        """It takes nothing any more; the number of events that it has sent by itself."""
        self._otherwise = None  # a cycle, with the relay whose method it is
        self._num_around = _NEVER
        return self._num_events

    def take(self, content: bytes, framed: bytes) -> bool:
        """A whole chunk, without and with its frame.  Raises what ``otherwise`` does."""
        is_held = self._exchange.is_write_paused
        text = content.removeprefix(self._prefix).removesuffix(self._suffix)
        if (
            len(text) == len(content) - self._num_around
            and text
            and not (is_held or _QUOTE in text or _LF in text or _CR in text)
            and self._write is not None
        ):
            self._num_events += 1
            self._write(framed)
            return True
        return self._otherwise is not None and self._otherwise(content)
