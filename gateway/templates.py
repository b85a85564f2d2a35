"""What encoded messages have in common is encoded once, with holes for what differs."""

from collections.abc import Iterable

import msgspec

_encode = msgspec.json.Encoder().encode


def template_of(encoded: bytes, holes: Iterable[tuple[object, bytes]]) -> bytes | None:
    """For ``%``: a hole of that form for each value.

    ``None`` where one of them is not there exactly once, as values that no message has are.
    """
    template = encoded.replace(b"%", b"%%")
    for value, hole in holes:
        mark = _encode(value)
        if template.count(mark) != 1:
            return None
        template = template.replace(mark, hole)
    return template
