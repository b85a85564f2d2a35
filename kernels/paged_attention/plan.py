"""From segments of sequences to what threads take from a counter, and tables they can index."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from kernels.paged_attention.cpu import tokens_per_piece
from kernels.paged_attention.formats import CHUNK_KEYS, AttentionSpecialization

_LEAST_BLOCK_SIZE: Final = 4  # tokens: a vector of the narrowest level


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive positions of one sequence, in consecutive rows of a flat batch."""

    first_row: int
    num_tokens: int
    start: int  # position of the first
    block_table: Sequence[int]  # covers start + num_tokens tokens


def plan_pieces(
    spec: AttentionSpecialization, segments: Sequence[Segment]
) -> npt.NDArray[np.int64]:
    """[num_pieces, 4]: first row, tokens, position of the first, segment.

    The longest work comes first, so that threads finish together.
    """
    length = tokens_per_piece(spec)
    pieces = [
        (s.first_row + offset, min(length, s.num_tokens - offset), s.start + offset, index)
        for index, s in enumerate(segments)
        for offset in range(0, s.num_tokens, length)
    ]
    pieces.sort(key=lambda piece: -piece[1] * (piece[2] + piece[1]))
    return np.array(pieces, np.int64).reshape(-1, 4)


def pad_block_tables(segments: Sequence[Segment]) -> npt.NDArray[np.int32]:
    """[num_segments, width]: each ends with a chunk's worth of blocks 0, which exist.

    Kernels fetch ahead from the chunk after the last, and use nothing of it.
    """
    width = CHUNK_KEYS // _LEAST_BLOCK_SIZE + max((len(s.block_table) for s in segments), default=0)
    tables = np.zeros((len(segments), width), np.int32)
    for row, segment in zip(tables, segments, strict=True):
        row[: len(segment.block_table)] = segment.block_table
    return tables
