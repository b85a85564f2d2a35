"""How requests are treated, as one statement says it: every field may be left unsaid.

Statements stand on three levels, organisation, tenant and key; ``contracts.resolution`` says which
of them counts.  What is counted over time is ``contracts.quota``; these hold for each request.
"""

from typing import Annotated

import msgspec

from contracts.admission import (
    CompletionBound,
    Milliseconds,
    Priority,
    QueueMilliseconds,
    Ratio,
    ServiceClass,
    TokenCounting,
    Tokens,
    Weight,
)
from contracts.windows import TimeWindow

Models = Annotated[tuple[str, ...], msgspec.Meta(max_length=1_000)]


class Terms(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="terms.v1", omit_defaults=True
):
    """``None``: nothing is said here.

    Of the requests of one key, to one model, while a window is open; ``None`` for any of the three.
    """

    key_id: str | None = None
    model: str | None = None  # as replicas call it
    window: TimeWindow | None = None
    allowed_models: Models | None = None  # as replicas call them; others are refused with 403
    max_prompt_tokens: Tokens | None = None
    max_completion_tokens: Tokens | None = None
    default_completion_tokens: Tokens | None = None
    counting: TokenCounting | None = None
    completion_bound: CompletionBound | None = None
    cached_token_weight: Ratio | None = None
    service_class: ServiceClass | None = None
    weight: Weight | None = None
    priority: Priority | None = None
    ttft_target_ms: Milliseconds | None = None
    max_queue_ms: QueueMilliseconds | None = None
