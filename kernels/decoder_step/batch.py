"""One step's work as the compiled code reads it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kernels.paged_attention.formats import AttentionSpecialization
from kernels.paged_attention.plan import Segment, pad_block_tables, plan_pieces


@dataclass(frozen=True, slots=True)
class StepBatch:
    """All tokens of all sequences, one row each; segments say whose they are."""

    token_ids: Sequence[int]  # [num_rows]
    positions: Sequence[int]  # [num_rows]
    slots: Sequence[int]  # [num_rows] block * block_size + offset
    segments: Sequence[Segment]
    sampled_rows: Sequence[int]  # rows whose logits are wanted


class BatchArrays(NamedTuple):
    token_ids: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    slots: npt.NDArray[np.int64]
    pieces: npt.NDArray[np.int64]  # see plan_pieces
    block_tables: npt.NDArray[np.int32]
    sampled_rows: npt.NDArray[np.int64]


def to_arrays(batch: StepBatch, spec: AttentionSpecialization) -> BatchArrays:
    return BatchArrays(
        token_ids=np.array(batch.token_ids, np.int64),
        positions=np.array(batch.positions, np.int64),
        slots=np.array(batch.slots, np.int64),
        pieces=plan_pieces(spec, batch.segments),
        block_tables=pad_block_tables(batch.segments),
        sampled_rows=np.array(batch.sampled_rows, np.int64),
    )
