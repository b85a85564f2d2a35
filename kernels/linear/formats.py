"""How weights lie in memory: tiles of 32 outputs by groups of 32 inputs, whatever the CPU.

A tile holds its groups one after the other, so a kernel reads it from front to back.  A group is

    float32   [32 k][32 columns] float32
    bfloat16  [32 k][32 columns] uint16
    q4_0      float16 d[32], then [4][32 columns] words of 8 nibbles
    q4_1      float16 d[32], float16 m[32], then [4][32 columns] words of 8 nibbles
    q8_0      float16 d[32], then [8][32 columns] words of 4 signed bytes

A column is one output.  Nibble i of word j is k = 8j + 4(i & 1) + (i >> 1), so that a word's even
nibbles are four neighbours, as its odd ones are: what integer dot products read.  Byte i of word
j is k = 4j + i.  The value of a code q is d * q + m (q4_1), d * (q - 8) (q4_0), d * q (q8_0).

Source of the codes: ggml, ``ggml-common.h`` (block_q4_0, block_q4_1, block_q8_0).
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from kernels.quantize.formats import GROUP_BYTES
from kernels.quantize.formats import GROUP_SIZE as GROUP_SIZE  # the same groups, of inputs
from kernels.vector_ir.specialization import Specialization

TILE_COLUMNS: Final = 32


class WeightFormat(StrEnum):
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    Q4_0 = "q4_0"
    Q4_1 = "q4_1"
    Q8_0 = "q8_0"

    @property
    def group_bytes(self) -> int:
        """Of one tile's group."""
        return _GROUP_BYTES[self]

    @property
    def codes_offset_bytes(self) -> int:
        """From the start of a group: past its scales."""
        return _CODES_OFFSET_BYTES[self]


_CODES_OFFSET_BYTES: Final = {
    WeightFormat.FLOAT32: 0,
    WeightFormat.BFLOAT16: 0,
    WeightFormat.Q4_0: 2 * TILE_COLUMNS,
    WeightFormat.Q4_1: 4 * TILE_COLUMNS,
    WeightFormat.Q8_0: 2 * TILE_COLUMNS,
}
_GROUP_BYTES: Final = {
    WeightFormat.FLOAT32: 4 * TILE_COLUMNS * GROUP_SIZE,
    WeightFormat.BFLOAT16: 2 * TILE_COLUMNS * GROUP_SIZE,
    WeightFormat.Q4_0: 2 * TILE_COLUMNS + TILE_COLUMNS * GROUP_SIZE // 2,
    WeightFormat.Q4_1: 4 * TILE_COLUMNS + TILE_COLUMNS * GROUP_SIZE // 2,
    WeightFormat.Q8_0: 2 * TILE_COLUMNS + TILE_COLUMNS * GROUP_SIZE,
}


def nibble_k(word: int, nibble: int) -> int:
    """The input that nibble ``nibble`` of word ``word`` belongs to."""
    return 8 * word + 4 * (nibble & 1) + (nibble >> 1)


class ActivationFormat(StrEnum):
    FLOAT32 = "float32"
    INT8 = "int8"  # see kernels.quantize.formats

    @property
    def group_bytes(self) -> int:
        """Of GROUP_SIZE inputs of one row."""
        return 4 * GROUP_SIZE if self is ActivationFormat.FLOAT32 else GROUP_BYTES


INTEGER_FORMATS: Final = (WeightFormat.Q4_0, WeightFormat.Q4_1, WeightFormat.Q8_0)


@dataclass(frozen=True, slots=True)
class LinearSpecialization(Specialization):
    """Raises ValueError for int8 activations without integer weights."""

    weight_format: WeightFormat
    activation_format: ActivationFormat = ActivationFormat.FLOAT32

    def __post_init__(self) -> None:
        is_integer = self.activation_format is ActivationFormat.INT8
        if is_integer and self.weight_format not in INTEGER_FORMATS:
            raise ValueError(
                f"int8 activations: expected integer weights, got {self.weight_format}"
            )
