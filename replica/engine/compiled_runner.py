"""A flat batch through the compiled step: lists go in, tokens come out."""

from collections.abc import Collection, Sequence

import numpy as np

from kernels.decoder_step.batch import StepBatch
from kernels.decoder_step.op import DecoderStep, StepResult
from kernels.paged_attention.plan import Segment
from kernels.sampling.op import RowSampler
from replica.engine.batch import FlatBatch, SampledRow, results_of
from replica.engine.kv_blocks import KvBlocks
from replica.engine.logprobs import sampled_token, shown_logits
from replica.engine.sampler import adjust_, draw_of, is_greedy
from replica.engine.step import NOT_FINITE, SampledToken


class CompiledRunner:
    """A ModelRunner."""

    def __init__(
        self,
        step: DecoderStep,
        sampler: RowSampler,
        blocks: KvBlocks,
        eos_token_ids: Collection[int],
    ) -> None:
        """``blocks``: of the step's own cache."""
        self._step = step
        self._sampler = sampler
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
        tokens = self._sample_rows(result, batch)
        return results_of(batch, result.is_finite.tolist(), tokens)

    def _sample_rows(self, result: StepResult, batch: FlatBatch) -> dict[int, SampledToken]:
        """Sampled tokens by row."""
        sampled_rows = batch.sampled_rows
        is_finite = np.isfinite(result.logits.sum(-1)).tolist()
        token_ids = result.best.tolist()
        shown = [shown_logits(result.logits[i], row) for i, row in enumerate(sampled_rows)]
        drawn: list[int] = []
        for index, row in enumerate(sampled_rows):
            own = batch.token_ids[row.row]
            is_adjusted = adjust_(result.logits[index], row, own, self._eos_token_ids)
            if is_finite[index] and not is_greedy(row.params):
                drawn.append(index)
            elif is_adjusted:
                token_ids[index] = int(result.logits[index].argmax())
        for index, token_id in zip(drawn, self._draw(result, sampled_rows, drawn), strict=True):
            token_ids[index] = token_id
        return {
            row.row: sampled_token(row, token_ids[index], shown[index])
            if is_finite[index]
            else NOT_FINITE
            for index, row in enumerate(sampled_rows)
        }

    def _draw(
        self, result: StepResult, sampled_rows: Sequence[SampledRow], indices: Sequence[int]
    ) -> Sequence[int]:
        if not indices:
            return ()
        draws = [draw_of(sampled_rows[i].params, sampled_rows[i].position) for i in indices]
        return self._sampler.sample(result.logits, indices, draws)
