"""Server-sent events that go to the client as they are, told by their bytes.

Most do.  A JSON string cannot hold what is searched for here: its quotes would be escaped.
"""

import re
from typing import Final

from gateway.api.event_stream import DONE

_END: Final = b"\n\n"
_USAGE, _NO_USAGE, _ERROR = b'"usage"', b'"usage":null', b'"error"'
_TEXT_END: Final = b'"finish_reason":null}],"usage":null}\n\n'  # of our replicas' events with text
_USUAL_TEXT: Final = b'"content":"'
_ANY_TEXT: Final = re.compile(
    rb'"(?:content|text|reasoning_content|reasoning|arguments)"\s*:\s*"[^"]'
)


def is_one_text(chunk: bytes) -> bool:
    """One event with text, as our own replicas write them."""
    return chunk.endswith(_TEXT_END) and chunk.find(b"\n") == len(chunk) - len(_END)


def is_plain(chunk: bytes) -> bool:
    """Whole events, LF their line end, of which none can be one that must be looked at."""
    return (
        chunk.endswith(_END)
        and (_USAGE not in chunk or chunk.count(_USAGE) == chunk.count(_NO_USAGE))
        and _ERROR not in chunk
        and DONE not in chunk
        and b"\r" not in chunk
    )


def plain_end(chunk: bytes) -> int:
    """Of the events at its beginning that are plain; zero if there are none."""
    if b"\r" in chunk:
        return 0
    found = [place for mark in (_ERROR, DONE) if (place := chunk.find(mark)) >= 0]
    usage = chunk.find(_USAGE)
    while usage >= 0 and chunk.startswith(_NO_USAGE, usage):
        usage = chunk.find(_USAGE, usage + 1)
    if usage >= 0:
        found.append(usage)
    last = chunk.rfind(_END, 0, min(found, default=len(chunk)))
    return 0 if last < 0 else last + len(_END)


def has_text(event: bytes) -> bool:
    """Whether an event holds a part of the answer."""
    text = event.find(_USUAL_TEXT) + len(_USUAL_TEXT)
    if text >= len(_USUAL_TEXT) and event[text : text + 1] != b'"':
        return True  # as the expression would say, far later
    return _ANY_TEXT.search(event) is not None


def num_with_text(events: bytes) -> int:
    """Of whole events."""
    if events.find(b"\n") == len(events) - len(_END):  # one of one line, as a rule
        return has_text(events)
    return sum(map(has_text, events.split(_END)))
