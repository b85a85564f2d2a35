"""What one admitted request consumed: gateway produces, billing consumes.

Kafka topic ``names.USAGE_TOPIC``, key ``tenant_id`` (one tenant's events stay ordered).
Delivery is at least once; ``event_id`` is the idempotency key.

Token classes are disjoint, so that no class is ever priced twice: a prompt of 100 tokens of
which 64 came from the prefix cache is 36 ``input_uncached_tokens`` and 64
``input_cache_read_tokens``.

Compatibility: adding a field needs a default; renaming, retyping or removing one needs a new
``tag``.  Decoders ignore fields they do not know.
"""

import enum
from datetime import datetime
from typing import Annotated

import msgspec

from contracts.errors import UNDECODABLE, ContractError

Tokens = Annotated[int, msgspec.Meta(ge=0)]
UtcDatetime = Annotated[datetime, msgspec.Meta(tz=True)]


class Outcome(enum.StrEnum):
    """How the request ended, as seen by the gateway."""

    COMPLETED = "completed"
    CLIENT_DISCONNECTED = "client_disconnected"
    UPSTREAM_FAILED = "upstream_failed"
    REFUSED = "refused"  # by the replica, for what the request says; nothing was generated
    CANCELLED = "cancelled"  # by the gateway: its own deadline or shutdown


class UsageSource(enum.StrEnum):
    """Who counted the tokens, best first."""

    ENGINE = "engine"  # the replica's own final count
    COUNTED = "counted"  # the gateway counted what it relayed; the replica could not be asked


class UsageEvent(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="usage.recorded.v1"
):
    """Token counts are tokens *processed*, whether or not they reached the client.

    Holds neither money (billing prices it) nor any part of a prompt, an answer or a key.
    """

    event_id: str  # made once, at admission
    request_id: str  # what the client saw in ``x-request-id``
    tenant_id: str
    key_id: str
    tier: str
    model_requested: str
    model: str  # what served it; what is priced
    replica: str | None  # None: no replica was reached
    endpoint: str  # "chat.completions" or "completions"
    is_stream: bool
    admitted_at: UtcDatetime
    occurred_at: UtcDatetime  # end of the request; prices are looked up at this instant
    outcome: Outcome
    usage_source: UsageSource
    input_uncached_tokens: Tokens
    input_cache_read_tokens: Tokens
    output_text_tokens: Tokens
    reserved_tokens: Tokens
    ttft_ms: float | None  # None: nothing was sent
    gateway_id: str
    gateway_boot_id: str
    gateway_seq: Annotated[int, msgspec.Meta(ge=1)]  # gapless within one boot

    @property
    def input_tokens(self) -> int:
        return self.input_uncached_tokens + self.input_cache_read_tokens

    @property
    def total_tokens(self) -> int:
        return self.input_tokens + self.output_text_tokens


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(UsageEvent)


def encode_usage_event(event: UsageEvent) -> bytes:
    """One line of JSON without a raw newline."""
    return _encoder.encode(event)


def decode_usage_event(payload: bytes) -> UsageEvent:
    """Raises ContractError; never returns a partially valid event."""
    try:
        return _decoder.decode(payload)
    except UNDECODABLE as exc:
        raise ContractError(f"usage event: {exc}") from exc
