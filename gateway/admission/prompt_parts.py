"""The parts of a prompt that are counted, and remembered, one by one: messages, or texts."""

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

import msgspec

_MAX_PARTS: Final = 65_536  # some 10 MB; a conversation's parts are looked at with each turn
_DIGEST_BYTES: Final = 16

_parts_decoder = msgspec.json.Decoder(list[msgspec.Raw])
_any_decoder = msgspec.json.Decoder()


class _Message(msgspec.Struct):
    role: str = ""
    content: msgspec.Raw = msgspec.Raw(b"null")
    tool_calls: msgspec.Raw = msgspec.Raw(b"")


_message_decoder = msgspec.json.Decoder(_Message)


def split(prompt: bytes) -> list[bytes]:
    """Messages, or texts, each as its JSON; a lone text is one part."""
    if not prompt.startswith(b"["):
        return [prompt]
    return [bytes(part) for part in _parts_decoder.decode(prompt)]


def text_of(part: bytes) -> str:
    """What of it reaches the tokenizer.  The template's own words are not in it."""
    if not part.startswith(b"{"):
        decoded = _any_decoder.decode(part)
        return decoded if isinstance(decoded, str) else part.decode()
    message = _message_decoder.decode(part)
    return _content_text(bytes(message.content)) + bytes(message.tool_calls).decode()


def is_system(part: bytes) -> bool:
    return part.startswith(b"{") and _message_decoder.decode(part).role in ("system", "developer")


def _content_text(content: bytes) -> str:
    decoded = _any_decoder.decode(content)
    if isinstance(decoded, str):
        return decoded
    if isinstance(decoded, list):
        texts = [item.get("text") for item in decoded if isinstance(item, dict)]
        return "".join(text for text in texts if isinstance(text, str))
    return ""


class PartCounts:
    """Token counts by content.  The hash is keyed with the tenant's secret: nobody can find out
    through it what another has sent."""

    def __init__(self) -> None:
        self._counts: OrderedDict[bytes, int] = OrderedDict()

    def keys(self, model: str, tenant_salt: bytes, parts: Sequence[bytes]) -> list[bytes]:
        first = hashlib.blake2b(model.encode(), key=tenant_salt, digest_size=_DIGEST_BYTES)
        keys = []
        for part in parts:
            hasher = first.copy()
            hasher.update(b"\0" + part)
            keys.append(hasher.digest())
        return keys

    def get(self, key: bytes) -> int | None:
        count = self._counts.get(key)
        if count is not None:
            self._counts.move_to_end(key)
        return count

    def put(self, key: bytes, count: int) -> None:
        self._counts[key] = count
        if len(self._counts) > _MAX_PARTS:
            self._counts.popitem(last=False)
