"""Whether, and for how long, a tenant's answers are kept for exact repeats."""

import enum
from typing import Annotated

import msgspec

from contracts.usage import Tokens


class HitCharge(enum.StrEnum):
    NOTHING = "nothing"  # a hit is no request: no quota, no usage event
    FULL = "full"  # as the answer that was kept


class CachePolicy(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag_field="type",
    tag="cache.policy.v1",
    omit_defaults=True,
):
    ttl_s: Annotated[int, msgspec.Meta(ge=1, le=30 * 86_400)] = 3_600
    max_answer_bytes: Annotated[int, msgspec.Meta(ge=1, le=4 * 1024 * 1024)] = 256 * 1024
    hit_charge: HitCharge = HitCharge.NOTHING
    is_opt_in: bool = False  # also of deterministic requests: only those that ask for it


class KeptAnswer(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="cache.answer.v1"
):
    """As it stands in the store.  One gateway writes it, all read it."""

    is_stream: bool
    parts: tuple[bytes, ...]  # of a stream, as they were written; else the body
    prompt_tokens: Tokens
    cached_prompt_tokens: Tokens
    completion_tokens: Tokens
    event_id: str | None = None  # of the request that it was generated for; None: not known
