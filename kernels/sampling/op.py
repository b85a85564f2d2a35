"""Drawing tokens for several rows at once, on the threads that computed them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kernels.sampling.cpu import NUM_BUCKETS, sample_rows
from kernels.sampling.draw import Draw
from kernels.threads.stage import STAGE_BYTES
from kernels.threads.team import ThreadTeam
from kernels.vector_ir.function import compile_for, compiled_entry
from kernels.vector_ir.levels import FeatureLevel, detect_level
from kernels.vector_ir.specialization import Specialization

Logits = npt.NDArray[np.float32]


class RowSampler:
    """Not for two threads at once.  A row's token depends on no other row."""

    def __init__(
        self, vocab_size: int, team: ThreadTeam, level: FeatureLevel | None = None
    ) -> None:
        """Compiles, or loads from the cache.  level: None for the best there is."""
        self._spec = Specialization(detect_level() if level is None else level)
        self._vocab_size = vocab_size
        self._team = team
        self._values = np.empty((team.num_threads, vocab_size), np.float32)
        self._masses = np.empty((team.num_threads, vocab_size), np.float64)
        self._buckets = np.empty((team.num_threads, NUM_BUCKETS), np.float64)
        self._stage = np.zeros(STAGE_BYTES // 8, np.int64)
        empty = np.empty((0, vocab_size), np.float32)
        arguments = self._arguments(empty, [], [], np.empty(0, np.int64))
        self._run = compile_for(_shared, 0, 0, *arguments)

    def sample(self, logits: Logits, rows: Sequence[int], draws: Sequence[Draw]) -> list[int]:
        """See ``reference.sample_reference`` for the definition: a token for each of ``rows``.

        logits: [num_rows, vocab], rows contiguous.  Raises ValueError for what is not.
        """
        if not rows:
            return []
        is_float32 = logits.dtype == np.float32
        if logits.shape[1:] != (self._vocab_size,) or logits.strides[1] != 4 or not is_float32:
            raise ValueError(f"expected contiguous rows of {self._vocab_size} float32 logits")
        if not 0 <= min(rows) <= max(rows) < len(logits):
            raise ValueError(f"rows: expected 0 to {len(logits) - 1}, got {rows}")
        token_ids = np.empty(len(rows), np.int64)
        self._stage[:] = 0
        self._team.run(self._run, *self._arguments(logits, rows, draws, token_ids))
        return token_ids.tolist()

    def _arguments(
        self,
        logits: Logits,
        rows: Sequence[int],
        draws: Sequence[Draw],
        token_ids: npt.NDArray[np.int64],
    ) -> tuple[Any, ...]:
        row_size = logits.strides[0] // logits.itemsize
        # Flat: an array of rows has one type where they touch and another where they do not.
        size = max(0, (len(logits) - 1) * row_size + self._vocab_size)
        flat = np.lib.stride_tricks.as_strided(logits, (size,), (logits.itemsize,))
        parameters = [(d.uniform, d.temperature, d.top_p, d.min_p) for d in draws]
        return (
            self._spec,
            flat,
            np.array(rows, np.int64) * row_size,
            np.array([d.top_k for d in draws], np.int64),
            np.array(parameters, np.float64).reshape(len(draws), 4),
            self._values,
            self._masses,
            self._buckets,
            token_ids,
            self._stage.ctypes.data,
        )


@compiled_entry
def _shared(
    thread: int,
    _num_threads: int,
    spec: Any,
    logits: Any,
    starts: Any,
    top_ks: Any,
    parameters: Any,
    values: Any,
    masses: Any,
    buckets: Any,
    token_ids: Any,
    stage: int,
) -> None:
    sample_rows(
        spec, logits, starts, top_ks, parameters, values[thread], masses[thread],
        buckets[thread], token_ids, stage,
    )  # fmt: skip
