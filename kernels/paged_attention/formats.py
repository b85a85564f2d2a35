"""How keys and values lie in their blocks.

One layer's keys are ``[num_blocks, kv_heads, head_dim, block_size]``: the block's tokens are the
lanes of a vector, so a score is a chain of multiply-adds over head_dim without a sum across lanes.
Its values are ``[num_blocks, kv_heads, block_size, head_dim]``: there the lanes are head_dim.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from kernels.vector_ir.specialization import Specialization

CHUNK_KEYS: Final = 64  # keys between two rescalings of the softmax, for every kind of row


class KvFormat(StrEnum):
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"

    @property
    def element_bytes(self) -> int:
        return 4 if self is KvFormat.FLOAT32 else 2


@dataclass(frozen=True, slots=True)
class AttentionSpecialization(Specialization):
    """Raises ValueError for shapes whose halves and blocks are not whole vectors."""

    kv_format: KvFormat
    head_dim: int
    group_size: int  # query heads per KV head
    block_size: int  # tokens

    def __post_init__(self) -> None:
        lanes = self.level.lanes
        if self.head_dim % (2 * lanes):
            raise ValueError(f"{self.level}: head_dim {self.head_dim} is not of {2 * lanes}s")
        if self.block_size % lanes or CHUNK_KEYS % self.block_size:
            raise ValueError(f"{self.level}: block size {self.block_size} does not fit")
