"""Whether a stream that is slow to begin is asked for once more, elsewhere: written in policies."""

import msgspec

from contracts.admission import Milliseconds


class HedgePolicy(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag_field="type",
    tag="hedge.policy.v1",
    omit_defaults=True,
):
    after_ms: Milliseconds | None = None  # None: what 95 of 100 streams of the model take to begin
