"""How busy a replica is, for routers and the autoscaler.

``GET LOAD_PATH`` answers ``ReplicaLoad``; it costs the replica no work that it would not do anyway.
"""

from typing import Annotated, Final

import msgspec

from contracts.usage import Tokens

LOAD_PATH: Final = "/pandal/v1/load"

Count = Annotated[int, msgspec.Meta(ge=0)]


class ReplicaLoad(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="replica.load.v1"
):
    """As of the engine's last step."""

    model: str
    is_ready: bool
    is_draining: bool
    num_running: Count
    num_waiting: Count
    queued_prompt_tokens: Tokens  # of waiting requests, before prefix hits
    expected_output_tokens: Tokens  # still to come, judging by the latest answers' lengths
    kv_cache_usage: Annotated[float, msgspec.Meta(ge=0, le=1)]
    num_kv_blocks: Count  # usable; 0 while loading
    block_size: Tokens
    prefill_tokens_per_s: Annotated[float, msgspec.Meta(ge=0)]  # measured; 0: not yet
    decode_tokens_per_s: Annotated[float, msgspec.Meta(ge=0)]  # of all sequences together
