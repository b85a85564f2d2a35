"""What gateways tell each other of the requests that came with an ``Idempotency-Key``.

It stands in the store of the response cache, by tenant, API key and key.
"""

import msgspec


class KeyClaim(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="idempotency.claim.v1"
):
    """Somebody is making the answer.  It expires unless they say so again."""

    body_digest: bytes
    holder: str  # no two claims have the same


class KeyAnswer(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="idempotency.answer.v1"
):
    body_digest: bytes  # of the request
    is_stream: bool
    headers: bytes  # complete lines
    parts: tuple[bytes, ...] | None  # of a stream, as they were written; None: too large to be kept


KeyRecord = KeyClaim | KeyAnswer
