"""A flat batch through the model: the only module that turns lists into tensors and back."""

from collections.abc import Collection

import torch

from replica.engine.batch import FlatBatch, SampledRow, results_of
from replica.engine.kv_blocks import PLAIN, KvBlocks, KvOptions
from replica.engine.logprobs import Logits, sampled_token, shown_logits
from replica.engine.paged_attention import KvCache, PagedAttention
from replica.engine.sampler import adjust_, sample
from replica.engine.step import NOT_FINITE, SampledToken
from replica.model.adapted_rows import TorchAdapters
from replica.model.llama import LlamaModel


class TorchRunner:
    """A ModelRunner."""

    def __init__(
        self,
        model: LlamaModel,
        adapters: TorchAdapters,
        *,
        num_blocks: int,
        block_size: int,
        eos_token_ids: Collection[int],
        options: KvOptions = PLAIN,
    ) -> None:
        self._model = model
        self._adapters = adapters
        self._block_size = block_size
        self._eos_token_ids = sorted(eos_token_ids)
        self._cache = KvCache(model.config, num_blocks, block_size)
        self._blocks = KvBlocks(self._cache.block_bytes(), options)

    @torch.inference_mode()
    def execute(self, batch: FlatBatch) -> list[SampledToken | None]:
        """See ``replica.engine.launcher.ModelRunner``."""
        self._blocks.apply(batch.kv_operations)
        hidden = self._model.hidden_states(
            torch.tensor(batch.token_ids, dtype=torch.int64),
            torch.tensor(batch.positions, dtype=torch.int64),
            PagedAttention(self._cache, batch, self._block_size, self._model.config.windows),
            self._adapters.of(batch.adapters),
        )
        is_finite_row = torch.isfinite(hidden.sum(-1)).tolist()
        tokens = self._sample_rows(hidden, batch)
        return results_of(batch, is_finite_row, tokens)

    def _sample_rows(self, hidden: torch.Tensor, batch: FlatBatch) -> dict[int, SampledToken]:
        """Sampled tokens by row."""
        sampled_rows = batch.sampled_rows
        if not sampled_rows:
            return {}
        logits = self._model.logits(hidden[[r.row for r in sampled_rows]])
        is_finite = torch.isfinite(logits.sum(-1)).tolist()
        return {
            row.row: self._sample_row(logits[index].numpy(), row, batch.token_ids[row.row])
            if is_finite[index]
            else NOT_FINITE
            for index, row in enumerate(sampled_rows)
        }

    def _sample_row(self, logits: Logits, row: SampledRow, own_token_id: int) -> SampledToken:
        shown = shown_logits(logits, row)
        adjust_(logits, row, own_token_id, self._eos_token_ids)
        return sampled_token(row, sample(logits, row.params, row.position), shown)
