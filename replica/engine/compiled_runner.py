"""A flat batch through the compiled step: lists go in, tokens come out."""

from collections.abc import Collection, Sequence

import numpy as np

from kernels.decoder_step.batch import StepBatch
from kernels.decoder_step.op import DecoderStep, StepResult
from kernels.paged_attention.plan import Segment
from replica.engine.batch import FlatBatch, SampledRow, results_of
from replica.engine.kv_blocks import KvBlocks
from replica.engine.sampler import Logits, is_greedy, sample
from replica.engine.step import NOT_FINITE, SampledToken


class CompiledRunner:
    """A ModelRunner."""

    def __init__(self, step: DecoderStep, blocks: KvBlocks, eos_token_ids: Collection[int]) -> None:
        """``blocks``: of the step's own cache."""
        self._step = step
        self._blocks = blocks
        self._eos_token_ids = sorted(eos_token_ids)

    def execute(self, batch: FlatBatch) -> list[SampledToken | None]:
        """See ``replica.engine.launcher.ModelRunner``."""
        self._blocks.apply(batch.kv_operations)
        result = self._step.run(
            StepBatch(
                batch.token_ids,
                batch.positions,
                batch.slots,
                [
                    Segment(s.first_row, s.num_tokens, s.start, s.block_table)
                    for s in batch.segments
                ],
                [row.row for row in batch.sampled_rows],
            )
        )
        tokens = self._sample_rows(result, batch.sampled_rows)
        return results_of(batch, result.is_finite.tolist(), tokens)

    def _sample_rows(
        self, result: StepResult, sampled_rows: Sequence[SampledRow]
    ) -> dict[int, SampledToken]:
        """Sampled tokens by row."""
        is_finite = np.isfinite(result.logits.sum(-1)).tolist()
        best = result.best.tolist()
        return {
            row.row: self._sample_row(result.logits[index], best[index], row)
            if is_finite[index]
            else NOT_FINITE
            for index, row in enumerate(sampled_rows)
        }

    def _sample_row(self, logits: Logits, best: int, row: SampledRow) -> SampledToken:
        if row.is_eos_banned:
            logits[self._eos_token_ids] = -np.inf
        elif is_greedy(row.params):
            return SampledToken(best, is_finite=True)
        return SampledToken(sample(logits, row.params, row.position), is_finite=True)
