"""What makes two requests the same: the tenant, the operation, and all that is asked for.

Only a request whose answer is determined may be answered with an old one: greedy, or sampled with a
seed.  Any other only if it asks for that (``x-pandal-cache: allow``).
"""

import hashlib
from typing import Final

import msgspec

from contracts.errors import UNDECODABLE
from contracts.response_cache import CachePolicy
from gateway.api.context import Operation

ALLOW: Final = b"allow"
OFF: Final = b"off"
_DETERMINING: Final = (b'"seed"', b'"temperature"', b'"top_k"')
_NO_MATTER: Final = ("user", "metadata", "priority")  # to an answer
_encoder = msgspec.json.Encoder(order="sorted")


def cache_digest(
    operation: Operation,
    body: bytes,
    base: str | None,
    policy: CachePolicy,
    said: bytes | None,
    secret: bytes,
) -> str | None:
    """``None``: it shall not be answered from memory.

    ``body``: as the replica gets it, where adapters of several bases may have one name; ``base``:
    whose adapter the model is.  ``said``: the request's own word.  ``secret``: the tenant's.
    """
    if said == OFF or (policy.is_opt_in and said != ALLOW):
        return None
    if said != ALLOW and not any(name in body for name in _DETERMINING):
        return None  # without a look at megabytes
    try:
        members = msgspec.json.decode(body, type=dict[str, object])
    except UNDECODABLE:
        return None
    if said != ALLOW and not _is_determined(members):
        return None
    for name in _NO_MATTER:
        members.pop(name, None)
    digest = hashlib.blake2b(_encoder.encode(members), key=secret, digest_size=24)
    digest.update(msgspec.json.encode((operation, base)))
    return digest.hexdigest()


def _is_determined(members: dict[str, object]) -> bool:
    is_seeded = isinstance(members.get("seed"), int)
    return is_seeded or members.get("temperature") == 0 or members.get("top_k") == 1
