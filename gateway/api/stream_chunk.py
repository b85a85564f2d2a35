"""What the gateway looks at of an OpenAI chunk or document; all else passes untouched."""

from collections.abc import Callable, Sequence

import msgspec

from contracts.errors import UNDECODABLE
from gateway.api.event_stream import EventSplitter, EventTooLarge
from gateway.errors import UpstreamError

_NULL = msgspec.Raw(b"null")


class Chunk(msgspec.Struct):
    choices: list[msgspec.Raw] | None = None
    error: msgspec.Raw = _NULL  # "Raw | None" would accept nothing but null


decode_chunk = msgspec.json.Decoder(Chunk).decode


def whole_events(splitter: EventSplitter, chunk: bytes) -> Sequence[bytes]:
    """Whole events; at the end of the stream, what is left.  Raises UpstreamError."""
    try:
        return list(splitter.feed(chunk)) if chunk else [splitter.flush()]
    except EventTooLarge as exc:
        raise UpstreamError("The replica sent an event without end.") from exc


def is_completion(document: bytes) -> bool:
    return _has(document, lambda chunk: chunk.choices is not None)


def is_error(document: bytes) -> bool:
    """In spite of its status."""
    return _has(document, lambda chunk: bytes(chunk.error) != b"null")


def _has(document: bytes, what: Callable[[Chunk], bool]) -> bool:
    try:
        return what(decode_chunk(document))
    except UNDECODABLE:
        return False
