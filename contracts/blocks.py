"""What a replica's prefix cache holds, as it changes.

``GET BLOCKS_PATH`` answers a stream of JSON lines: one ``BlockSnapshot``, then ``BlockChanges``
without end, whose ``seq`` rise by one from the snapshot's.  A snapshot of very many blocks is told
as an older one of a part of them, and as changes that store the rest.  Blank lines keep the
connection alive.  A replica cuts off a reader that falls behind; whoever sees the stream end, or a
gap, subscribes again.  Hashes are ``contracts.prefix`` chains in hex: salted per tenant, they give
nothing away.
"""

from typing import Annotated, Final

import msgspec

from contracts.usage import Tokens

BLOCKS_PATH: Final = "/pandal/v1/blocks"

Sequence = Annotated[int, msgspec.Meta(ge=0)]


class BlockStored(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="block.stored.v1"
):
    hash: str
    parent_hash: str  # a first block's parent is the root hash of its tenant
    num_tokens: Tokens


class BlockRemoved(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="block.removed.v1"
):
    hash: str


class BlocksCleared(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="blocks.cleared.v1"
):
    """All are gone."""


class PromptStored(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="prompt.stored.v1"
):
    """A request's prompt is computed: whoever sent it learns what its text is in blocks."""

    request_id: str
    hash: str  # of its last whole block
    num_tokens: Tokens  # of the whole prompt
    block_size: Tokens


class BlockSnapshot(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="blocks.snapshot.v1"
):
    seq: Sequence
    blocks: tuple[BlockStored, ...]


Change = BlockStored | BlockRemoved | BlocksCleared | PromptStored


class BlockChanges(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="blocks.changes.v1"
):
    """What one step changed, in order."""

    seq: Sequence
    changes: tuple[Change, ...]
