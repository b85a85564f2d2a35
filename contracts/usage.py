"""What one admitted request consumed: gateway produces, billing consumes.

Kafka topic ``names.USAGE_TOPIC``, key ``tenant_id`` (one tenant's events stay ordered), CloudEvents
1.0 in binary mode: the value is the event's JSON, ``cloud_event_headers`` say what it is.  Its JSON
Schema is ``usage.v1.schema.json`` beside this module.  Delivery is at least once; ``event_id`` is
the idempotency key.

Token classes are disjoint, so that no class is ever priced twice: a prompt of 100 tokens of
which 64 came from the prefix cache is 36 ``input_uncached_tokens`` and 64
``input_cache_read_tokens``, and an answer of 482 tokens of which 448 were reasoning is 34
``output_text_tokens``.  An explicit zero is a zero; what is not known is ``None``.

Compatibility: adding a field needs a default; renaming, retyping or removing one needs a new
``tag``.  Decoders ignore fields they do not know.  Fields that came later stand at the end.
"""

import enum
from datetime import datetime
from typing import Annotated, Final

import msgspec

from contracts.errors import UNDECODABLE, ContractError

Tokens = Annotated[int, msgspec.Meta(ge=0)]
UtcDatetime = Annotated[datetime, msgspec.Meta(tz=True)]

_TYPE: Final = "usage.recorded.v1"
SCHEMA_ID: Final = "urn:pandal:schema:usage.v1"


class Outcome(enum.StrEnum):
    """How the request ended, as seen by the gateway."""

    COMPLETED = "completed"
    CLIENT_DISCONNECTED = "client_disconnected"
    UPSTREAM_FAILED = "upstream_failed"
    REFUSED = "refused"  # by the replica, for what the request says; nothing was generated
    CANCELLED = "cancelled"  # by the gateway: its own deadline or shutdown
    REFUSED_MIDWAY = "refused_midway"  # the gateway ended an answer that had begun, by a rule
    RESPONSE_CACHE_HIT = "response_cache_hit"  # an earlier answer again: nothing was generated
    GATEWAY_LOST = "gateway_lost"  # its gateway died before the end; an auditor has said so


class UsageSource(enum.StrEnum):
    """Who counted the tokens, best first."""

    ENGINE = "engine"  # the replica's own final count
    PROVIDER = "provider"  # a foreign provider's own final count
    PARTIAL = "partial"  # theirs, of what they lived to report, or a provider was sent or asked for
    COUNTED = "counted"  # the gateway counted what it relayed; the replica could not be asked


class Endpoint(enum.StrEnum):
    """What the data plane does, as events and keys' scopes spell it."""

    CHAT_COMPLETIONS = "chat.completions"
    COMPLETIONS = "completions"


class OutputCharge(enum.StrEnum):
    """Which of an unfinished answer's tokens are charged: the tenant's policy says."""

    GENERATED = "generated"
    DELIVERED = "delivered"


class UsageEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag=_TYPE):
    """Token counts are tokens *processed*, whether or not they reached the client.

    ``tier`` chooses limits, and prices where a price book tells tiers apart.

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
    endpoint: str  # an Endpoint; yesterday's events are read whatever they say
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
    input_cache_write_tokens: Tokens = 0
    output_reasoning_tokens: Tokens = 0
    settled_tokens: Tokens | None = None  # what the quota was told; None: all of them
    delivered_tokens: Tokens | None = None  # of the output, sent to the client; None: all of it
    output_charge: OutputCharge = OutputCharge.GENERATED
    tpot_ms: float | None = None  # mean time per output token after the first; None: not two sent
    provider: str | None = None  # None: a replica of ours
    priority: int = 0  # least first
    attempt: Annotated[int, msgspec.Meta(ge=1)] = 1  # which of them was answered
    is_recovered: bool = False  # an auditor wrote it, out of the replica's own record
    is_locally_admitted: bool = False  # by its gateway while the quota store was away
    adapter: str | None = None  # ``model``, where that is an adapter of another one
    parent_event_id: str | None = None  # whose answer this one repeats; None: its own was generated
    adapter_of: str | None = None  # whose: that model's price holds where the adapter has none

    @property
    def input_tokens(self) -> int:
        return (
            self.input_uncached_tokens
            + self.input_cache_read_tokens
            + self.input_cache_write_tokens
        )

    @property
    def output_tokens(self) -> int:
        return self.output_text_tokens + self.output_reasoning_tokens

    @property
    def total_tokens(self) -> int:
        return self.input_tokens + self.output_tokens


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


Headers = list[tuple[str, bytes]]


def cloud_event_headers(event: UsageEvent) -> Headers:
    """Of the Kafka record that bears ``event``: CloudEvents 1.0, Kafka binding, binary mode."""
    return [
        ("ce_specversion", b"1.0"),
        ("ce_id", event.event_id.encode()),
        ("ce_source", f"/gateways/{event.gateway_id}/{event.gateway_boot_id}".encode()),
        ("ce_type", _TYPE.encode()),
        ("ce_time", event.occurred_at.isoformat().encode()),
        ("ce_subject", event.tenant_id.encode()),
        ("ce_partitionkey", event.tenant_id.encode()),
        ("ce_dataschema", SCHEMA_ID.encode()),
        ("content-type", b"application/json"),
    ]
