"""How keys and values lie in their blocks.

One layer's keys are ``[num_blocks, kv_heads, head_dim, block_size]``: the block's tokens are the
lanes of a vector, so a score is a chain of multiply-adds over head_dim without a sum across lanes.
Its values are ``[num_blocks, kv_heads, block_size, head_dim]``: there the lanes are head_dim.

As int8, a head of a block is followed by float32 scales[block_size], one for each token: an element
is scale * code, and the scale is the token's largest element of that head / 127.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from kernels.vector_ir.specialization import Specialization

CHUNK_KEYS: Final = 64  # keys between two rescalings of the softmax, for every kind of row

SPAN_KEYS: Final = 256  # keys whose softmax is made on its own, see ``row_states``
ALL_POSITIONS: Final = 1 << 40  # a window without an edge


class KvFormat(StrEnum):
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    INT8 = "int8"

    @property
    def element_bytes(self) -> int:
        return _ELEMENT_BYTES[self]

    @property
    def scale_bytes(self) -> int:
        """Of one token's head."""
        return 4 if self is KvFormat.INT8 else 0

    def head_bytes(self, head_dim: int) -> int:
        """Of one token's keys, or values, of one head."""
        return head_dim * self.element_bytes + self.scale_bytes


_ELEMENT_BYTES: Final = {KvFormat.FLOAT32: 4, KvFormat.BFLOAT16: 2, KvFormat.INT8: 1}


@dataclass(frozen=True, slots=True)
class AttentionSpecialization(Specialization):
    """Raises ValueError for shapes whose halves and blocks are not whole vectors."""

    kv_format: KvFormat
    head_dim: int
    group_size: int  # query heads per KV head
    block_size: int  # tokens
    has_window: bool = False  # rows may see less than all positions before them

    @property
    def block_head_bytes(self) -> int:
        """Of one head's keys, or values, in one block."""
        return self.block_size * self.kv_format.head_bytes(self.head_dim)

    @property
    def scales_offset_bytes(self) -> int:
        """From the start of a block's head."""
        return self.block_size * self.head_dim * self.kv_format.element_bytes

    def __post_init__(self) -> None:
        lanes = self.level.lanes
        if self.head_dim % (2 * lanes):
            raise ValueError(f"{self.level}: head_dim {self.head_dim} is not of {2 * lanes}s")
        if self.block_size % lanes or CHUNK_KEYS % self.block_size:
            raise ValueError(f"{self.level}: block size {self.block_size} does not fit")
