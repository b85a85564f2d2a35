"""What vLLM and SGLang publish of their prefix caches, decoded.

One message is a number that rises by one, and a batch in msgpack.  Batches and events are maps in
newer versions and arrays in older ones, and arrays have grown at their ends: members that are
missing have defaults, and those that are unknown are left alone.
(``vllm/distributed/kv_events.py``, ``sglang/srt/disaggregation/kv_events.py``)
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

Hash = int | bytes  # whatever the engine calls a block; of that engine's process alone


class BlockStored(msgspec.Struct, frozen=True, tag=True):
    """Some blocks, each the next one's parent."""

    block_hashes: Sequence[Hash]
    parent_block_hash: Hash | None
    token_ids: Sequence[int]
    block_size: int
    medium: str | None = None
    extra_keys: Sequence[Sequence[Any] | None] | None = None  # of each block: its salt, for one
    group_idx: int | None = None


class BlockRemoved(msgspec.Struct, frozen=True, tag=True):
    block_hashes: Sequence[Hash]
    medium: str | None = None
    group_idx: int | None = None


class AllBlocksCleared(msgspec.Struct, frozen=True, tag=True):
    pass


Event = BlockStored | BlockRemoved | AllBlocksCleared

_MEMBERS: Final = {  # in the order in which arrays have them
    "BlockStored": (
        "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium",
        "lora_name", "extra_keys", "group_idx",
    ),
    "BlockRemoved": ("block_hashes", "medium", "group_idx"),
    "AllBlocksCleared": (),
}  # fmt: skip


def decode_events(payload: bytes) -> list[Event]:
    """Raises msgspec's errors."""
    batch = msgspec.msgpack.decode(payload)
    match batch:
        case {"events": [*events]} | [_, [*events], *_]:
            return msgspec.convert(list(map(_by_name, events)), list[Event])
    raise msgspec.ValidationError("expected a batch of events")


def _by_name(event: object) -> object:
    match event:
        case [str() as tag, *members] if tag in _MEMBERS:
            return {"type": tag, **dict(zip(_MEMBERS[tag], members, strict=False))}
    return event
