"""What one request consumed on one replica, by the replica's own count: the second witness.

What is billed is the gateway's usage event.  Each replica keeps these beside it, so that whoever
reconciles finds what a gateway that was killed could not say, and what one said that never was.

They are kept in a folder as ``contracts.spool`` has it, one folder a replica, of segments that only
their writer removes: it keeps the latest ones, within a bound.  They are written as soon as a
request ends and not synced: they outlive the replica's process, and perhaps not a power cut.
Nothing waits for them: on a disk that is full or hangs, records are lost, which their sequence
numbers show.

Several attempts of a gateway at one request bear its event's id each.
"""

from typing import Annotated

import msgspec

from contracts.errors import UNDECODABLE, ContractError
from contracts.usage import Tokens, UtcDatetime


class ReplicaUsage(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="replica.usage.v1"
):
    """Of every request that the engine was given.  Holds no part of a prompt or an answer.

    Token classes are disjoint, as those of a usage event.
    """

    event_id: str | None  # of the gateway's usage event; None: whoever asked named none
    request_id: str  # as the replica was asked: unique per attempt of a gateway
    tenant_id: str | None  # None: whoever asked named none
    model: str
    endpoint: str  # "chat.completions" or "completions"
    is_stream: bool
    finish_reasons: tuple[str | None, ...]  # one per choice; None: the engine died before its end
    is_final: bool  # False: for that reason these counts are what was seen, and so the least
    input_uncached_tokens: Tokens
    input_cache_read_tokens: Tokens
    output_text_tokens: Tokens
    resumed_tokens: Tokens  # how many of the input were generated elsewhere, and counted there
    arrived_at: UtcDatetime
    finished_at: UtcDatetime
    replica_boot_id: str
    replica_seq: Annotated[int, msgspec.Meta(ge=1)]  # gapless within one boot, but for losses
    is_locally_admitted: bool = False  # as its gateway said: the quota's store was away
    adapter: str | None = None  # ``model``, where it is an adapter of the one that was loaded
    adapter_of: str | None = None  # that one's name


_decoder = msgspec.json.Decoder(ReplicaUsage)


def encode_replica_usage(usage: ReplicaUsage) -> bytes:
    """One line of JSON without a raw newline."""
    return msgspec.json.encode(usage)


def decode_replica_usage(payload: bytes) -> ReplicaUsage:
    """Raises ContractError; never returns a partially valid record."""
    try:
        return _decoder.decode(payload)
    except UNDECODABLE as exc:
        raise ContractError(f"replica usage: {exc}") from exc
