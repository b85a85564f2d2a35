"""How a tenant's requests are let in: counted by what, held to what, and in whose turn.

What a tenant may spend is ``contracts.policy.Limits``; this is how its requests are treated.
"""

import enum
from collections.abc import Mapping
from typing import Annotated

import msgspec

MAX_PRIORITY = 100
Tokens = Annotated[int, msgspec.Meta(ge=1, le=1_000_000_000)]
Ratio = Annotated[float, msgspec.Meta(ge=0, le=1)]
Milliseconds = Annotated[int, msgspec.Meta(ge=1, le=24 * 3_600_000)]
QueueMilliseconds = Annotated[int, msgspec.Meta(ge=0, le=3_600_000)]
Weight = Annotated[int, msgspec.Meta(ge=1, le=1_000)]
Priority = Annotated[int, msgspec.Meta(ge=-MAX_PRIORITY, le=MAX_PRIORITY)]


class TokenCounting(enum.StrEnum):
    """What a prompt is counted by at admission; settled is always what the engine counted."""

    LEARNED = "learned"  # a ratio of bytes, learned from settled requests
    EXACT = "exact"  # the model's own tokenizer


class CompletionBound(enum.StrEnum):
    """How many completion tokens are reserved."""

    ASKED = "asked"  # max_tokens, or the default: never too few
    LEARNED = "learned"  # the 95th percentile of the tenant's answers: what is over becomes debt


class ServiceClass(enum.StrEnum):
    INTERACTIVE = "interactive"  # goes before standard by its weight
    STANDARD = "standard"
    BATCH = "batch"  # only in slack, but ageing: it never starves


class AdmissionPolicy(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="admission.v1"
):
    max_prompt_tokens: Tokens = 1_000_000  # a longer prompt is refused with 400
    counting: TokenCounting = TokenCounting.LEARNED
    completion_bound: CompletionBound = CompletionBound.ASKED
    cached_token_weight: Ratio = 1.0  # of prompt tokens found cached, against the quota
    service_class: ServiceClass = ServiceClass.STANDARD
    weight: Weight = 1  # its share of tokens, to others'
    priority: Priority = 0  # least first
    ttft_target_ms: Milliseconds | None = None  # None: no request waits or is refused for it
    max_queue_ms: QueueMilliseconds = 0  # 0: refused at once, unless its target leaves time


ADMISSION_TIERS: Mapping[str, AdmissionPolicy] = {
    "free": AdmissionPolicy(max_prompt_tokens=8_192, priority=1),
    "standard": AdmissionPolicy(max_prompt_tokens=32_768, weight=2),
    "gold": AdmissionPolicy(
        max_prompt_tokens=131_072,
        service_class=ServiceClass.INTERACTIVE,
        weight=8,
        priority=-1,
    ),
}
