"""Steps on a device: launched without a wait, their tokens carried over there, read when asked for.

A ModelRunner and a StepLauncher in one: between two steps no number comes to the host but those
that the loop asks for, a step later.
"""

from collections.abc import Collection
from dataclasses import dataclass

import torch

from kernels.paged_attention.rows import AttentionRows
from kernels.sampling.rows_reference import Draws, LogitBias
from kernels.sampling.triton_op import bias_, sample
from replica.engine.batch import FlatBatch, SampledRow, results_of
from replica.engine.launcher import Tokens
from replica.engine.step import NOT_FINITE, SampledToken
from replica.gpu.decode_graphs import DecodeGraphs
from replica.gpu.device import Device, Mark
from replica.gpu.inputs import HostDraws, carried, host_draws, host_inputs
from replica.gpu.kv_cache import DeviceKvCache
from replica.gpu.logprobs import ShownLogprobs, shown_logprobs
from replica.gpu.model import DeviceInputs, DeviceLlama
from replica.gpu.penalties import penalize_rows_


@dataclass(frozen=True, slots=True)
class DeviceStep:
    """A LaunchedStep."""

    batch: FlatBatch
    numbers: torch.Tensor  # on the host: tokens, whether logits are finite, whether rows are
    mark: Mark
    shown: ShownLogprobs | None = None  # where a row wants them

    def result(self) -> Tokens:
        self.mark.wait()
        num_sampled = len(self.batch.sampled_rows)
        tokens, are_finite, rows = self.numbers.tensor_split((num_sampled, 2 * num_sampled))
        sampled = {
            row.row: self._token(index, row, token) if is_finite else NOT_FINITE
            for index, (row, token, is_finite) in enumerate(
                zip(self.batch.sampled_rows, tokens.tolist(), are_finite.tolist(), strict=True)
            )
        }
        return results_of(self.batch, [bool(row) for row in rows.tolist()], sampled)

    def _token(self, index: int, row: SampledRow, token_id: int) -> SampledToken:
        logprobs = None if self.shown is None else self.shown.of(index, row)
        return SampledToken(token_id, is_finite=True, logprobs=logprobs)


class DeviceRunner:
    """A ModelRunner and a StepLauncher."""

    def __init__(
        self,
        device: Device,
        model: DeviceLlama,
        cache: DeviceKvCache,
        graphs: DecodeGraphs,
        *,
        eos_token_ids: Collection[int],
        num_ahead: int,
    ) -> None:
        """num_ahead: 0, or 1 to schedule while a step computes."""
        self.num_ahead = num_ahead
        self._device = device
        self._model = model
        self._cache = cache
        self._graphs = graphs
        self._eos_token_ids = sorted(eos_token_ids)
        # By segment of the latest batch; a segment that decided nothing has any token.
        self._latest = torch.zeros(0, dtype=torch.int64, device=device.torch_device)

    def execute(self, batch: FlatBatch) -> Tokens:
        """See ``replica.engine.launcher.ModelRunner``."""
        return self.launch(batch).result()

    @torch.inference_mode()
    def launch(self, batch: FlatBatch) -> DeviceStep:
        """See ``replica.engine.launcher.StepLauncher``."""
        self._cache.apply(batch.kv_operations)
        token_ids, hidden = self._hidden_states(batch)
        draws = host_draws(batch, self._eos_token_ids)
        tokens, are_finite, shown = self._draw(token_ids, hidden, draws)
        self._latest = torch.zeros(
            len(batch.segments), dtype=torch.int64, device=self._device.torch_device
        ).index_copy_(0, self._device.upload(draws.segments), tokens)
        row_is_finite = torch.isfinite(hidden.float().sum(-1))
        numbers = torch.cat([tokens, are_finite.long(), row_is_finite.long()])
        return DeviceStep(batch, self._device.download(numbers), self._device.mark(), shown)

    def _hidden_states(self, batch: FlatBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Of each row its token id and its [hidden]; behind the token ids may stand others."""
        if self._graphs.can_run(batch):
            token_ids = self._graphs.fill(batch)
            self._carry(batch, token_ids)
            return token_ids, self._graphs.run(batch)
        upload, host = self._device.upload, host_inputs(batch)
        token_ids = upload(host.token_ids)
        self._carry(batch, token_ids)
        attention = AttentionRows(
            query_starts=upload(host.query_starts),
            context_lengths=upload(host.context_lengths),
            block_tables=upload(host.block_tables),
            max_query_tokens=host.max_query_tokens,
            max_context=host.max_context,
        )
        inputs = DeviceInputs(
            token_ids, upload(host.positions), upload(host.slots), attention,
            self._model.adapters.rows(upload(host.adapter_ids)),
        )  # fmt: skip
        return token_ids, self._model.hidden_states(inputs, self._cache)

    def _carry(self, batch: FlatBatch, token_ids: torch.Tensor) -> None:
        """Puts the tokens in that the step before decides; the host need not know them."""
        if batch.carried_tokens:
            rows, segments = map(self._device.upload, carried(batch))
            token_ids.index_copy_(0, rows, self._latest[segments])

    def _draw(
        self, token_ids: torch.Tensor, hidden: torch.Tensor, draws: HostDraws
    ) -> tuple[torch.Tensor, torch.Tensor, ShownLogprobs | None]:
        """(tokens int64, whether their logits are finite), each [num_sampled]; what is shown."""
        upload = self._device.upload
        rows = upload(draws.rows)
        logits = self._model.logits(hidden[rows])
        are_finite = torch.isfinite(logits.sum(-1))
        asking = upload(draws.asking) if draws.asking.size else None
        shown = None if asking is None else logits[asking]  # a copy: bans are in place
        if draws.biased.size:
            places, tokens = upload(draws.biased)
            bias_(logits, LogitBias(places, tokens, upload(draws.biases)))
        if draws.penalties is not None:
            penalize_rows_(self._device, logits, token_ids[rows], draws.penalties)
        temperatures, top_ps, min_ps, uniforms = upload(draws.settings)
        top_ks = upload(draws.top_ks)
        settings = Draws(temperatures, top_ks, top_ps, min_ps, uniforms, draws.are_greedy)
        drawn = sample(logits, settings)
        if asking is None or shown is None:
            return drawn, are_finite, None
        return drawn, are_finite, shown_logprobs(self._device, shown, drawn[asking], draws)
