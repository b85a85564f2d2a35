"""Which requests should meet the same prefix cache: a key that a conversation keeps as it grows.

For a chat it is the messages up to the first of the user's, for a completion the beginning of the
prompt.  So the turns of one conversation share a key, and two users of one system prompt do not.
"""

import msgspec

from contracts.errors import UNDECODABLE

_MAX_BYTES = 4_096  # what differs beyond it hardly matters to a prefix cache
_COMPLETION_BYTES = 1_024
_USER_FIRST = b'{"role": "user"', b'{"role":"user"'  # as clients write it


class _Role(msgspec.Struct):
    role: str | None = None


_messages_decoder = msgspec.json.Decoder(list[msgspec.Raw])
_role_decoder = msgspec.json.Decoder(_Role)


def prompt_affinity_key(tenant_salt: bytes, prompt: bytes, prompt_cache_key: str | None) -> bytes:
    """Starts with the tenant's secret: no tenant can aim at another's replica."""
    if prompt_cache_key is not None:
        return tenant_salt + b"k" + prompt_cache_key.encode()
    return tenant_salt + b"p" + prompt[:_COMPLETION_BYTES]


def chat_affinity_key(tenant_salt: bytes, messages: bytes, prompt_cache_key: str | None) -> bytes:
    """As ``prompt_affinity_key``."""
    if prompt_cache_key is not None:
        return tenant_salt + b"k" + prompt_cache_key.encode()
    return tenant_salt + b"m" + _opening(messages)


def _opening(messages: bytes) -> bytes:
    """The raw messages up to the first of the user's; all of them if none is."""
    window = messages[:_MAX_BYTES]
    if b"}" not in window:  # of a long prompt: its first message goes on beyond it
        return window
    opening: list[bytes] = []
    for message in _messages_decoder.decode(messages):
        raw = bytes(message)
        opening.append(raw)
        if raw.startswith(_USER_FIRST) or _is_users(raw):
            break
    return b"\n".join(opening)[:_MAX_BYTES]


def _is_users(message: bytes) -> bool:
    try:
        return _role_decoder.decode(message).role == "user"
    except UNDECODABLE:
        return False  # the replica will refuse it
