"""What a request may be served by when the replicas of its model cannot: written in policies.

Before the client has a byte, and only for what is not the client's doing.  Steps are tried in
order, each once, and none has a chain of its own: there is no loop.
"""

from typing import Annotated

import msgspec

from contracts.quota import Limit


class FallbackStep(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag_field="type",
    tag="fallback.step.v1",
    omit_defaults=True,
):
    model: str  # as whoever serves it calls it
    provider: str | None = None  # None: our own replicas
    max_context_tokens: Limit | None = None  # a longer prompt skips it; the answer is cut to fit

    @property
    def priced_as(self) -> str:
        """The model's name in events and price books."""
        return self.model if self.provider is None else f"{self.provider}/{self.model}"


class FallbackChain(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag_field="type",
    tag="fallback.chain.v1",
    omit_defaults=True,
):
    model: str  # as replicas call it
    steps: tuple[FallbackStep, ...] = ()
    wait_ms: Annotated[int, msgspec.Meta(ge=0, le=600_000)] = 0  # at the end, for its own replicas
