"""The identity of a block of KV cache: a hash chain, salted per tenant.

The replica keys its prefix cache with it, and routers and event consumers recompute it, so it must
come out equal everywhere.  Every field is typed and length-prefixed: no two different inputs build
one message (vllm#44701 is what happens otherwise).
"""

import hashlib
import struct
from collections.abc import Sequence

BLOCK_HASH_BYTES = 16
_FORMAT = b"pandal.block.v1"


def root_hash(
    *, model_revision: str, cache_salt: str, kv_dtype: str, adapter_digest: str | None = None
) -> bytes:
    """The parent of a sequence's first block: everything but the tokens that decides its KV.

    adapter_digest: of the content and the strength of what changes the model's weights; None: of
    nothing.  A name would not do: it may come back with other weights (vllm#42125).  Every field
    has its length in front, so four of them never build the message of five.
    """
    fields = [_FORMAT, model_revision.encode(), cache_salt.encode(), kv_dtype.encode()]
    if adapter_digest is not None:
        fields.append(adapter_digest.encode())
    hasher = hashlib.blake2b(digest_size=BLOCK_HASH_BYTES)
    for field in fields:
        hasher.update(struct.pack("<Q", len(field)))
        hasher.update(field)
    return hasher.digest()


def block_hash(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """Hash of one full block: ``parent`` (16 bytes), then each token id as unsigned 32 bits."""
    if len(parent) != BLOCK_HASH_BYTES:
        raise ValueError(f"parent must be {BLOCK_HASH_BYTES} bytes, got {len(parent)}")
    tokens = struct.pack(f"<{len(token_ids)}I", *token_ids)
    return hashlib.blake2b(parent + tokens, digest_size=BLOCK_HASH_BYTES).digest()
