"""Which requests should meet the same prefix cache: those that begin alike.

A chat begins with its tools and the messages before the first of the user's, where these are long
enough to be worth it; else, and to tell its turns from other conversations, with that message, too.
A plain completion begins with its prompt.  Both keep their key as they grow.  A client that knows
better names a key.
"""

import msgspec

from contracts.errors import UNDECODABLE
from gateway.prompt import Affinity

_MAX_LEADING_BYTES = 4_096  # what differs beyond it hardly matters to a prefix cache
_MIN_LEADING_BYTES = 1_024  # some 200 tokens; fewer are soon computed anywhere
_MAX_QUESTION_BYTES = 1_024
_COMPLETION_BYTES = 1_024
_USER_FIRST = b'{"role": "user"', b'{"role":"user"'  # as clients write it


class _Role(msgspec.Struct):
    role: str | None = None


_messages_decoder = msgspec.json.Decoder(list[msgspec.Raw])
_role_decoder = msgspec.json.Decoder(_Role)


def clients_affinity(tenant_salt: bytes, key: bytes) -> Affinity:
    """By a key of the client's choice."""
    salted = tenant_salt + b"k" + key
    return Affinity(salted, salted, is_clients=True)


def prompt_affinity(tenant_salt: bytes, prompt: bytes) -> Affinity:
    """Starts with the tenant's secret: no tenant can aim at another's replica."""
    key = tenant_salt + b"p" + prompt[:_COMPLETION_BYTES]
    return Affinity(key, key)


def chat_affinity(tenant_salt: bytes, messages: bytes, tools: bytes) -> Affinity:
    """As ``prompt_affinity``."""
    leading: list[bytes] = []  # before the first of the user's
    question = b""
    for message in _messages_decoder.decode(messages):
        raw = bytes(message)
        if raw.startswith(_USER_FIRST) or _is_users(raw):
            question = raw[:_MAX_QUESTION_BYTES]
            break
        leading.append(raw)
    shared = (tools + b"\n".join(leading))[:_MAX_LEADING_BYTES]
    conversation = tenant_salt + b"m" + shared + b"\n" + question
    if len(shared) < _MIN_LEADING_BYTES:
        return Affinity(conversation, conversation)
    return Affinity(tenant_salt + b"l" + shared, conversation)


def _is_users(message: bytes) -> bool:
    try:
        return _role_decoder.decode(message).role == "user"
    except UNDECODABLE:
        return False  # the replica will refuse it
