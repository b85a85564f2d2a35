"""What the model itself thought of the tokens it drew, while the logits are on the device."""

from dataclasses import dataclass

import torch

from kernels.sampling.triton_op import logprobs
from replica.engine.batch import SampledRow
from replica.engine.messages import TokenLogprobs
from replica.gpu.device import Device


@dataclass(frozen=True, slots=True)
class ShownLogprobs:
    """Of every sampled row, on the host: of the token that was drawn, then of the likeliest."""

    token_ids: torch.Tensor  # int64 [num_sampled, 1 + num_top]
    values: torch.Tensor  # float32, like them

    def of(self, index: int, row: SampledRow) -> TokenLogprobs | None:
        """None: that row wants none."""
        num_top = row.params.num_top_logprobs
        if num_top is None:
            return None
        chosen, *values = self.values[index].tolist()
        return TokenLogprobs(
            logprob=chosen,
            top_token_ids=self.token_ids[index, 1 : 1 + num_top].tolist(),
            top_logprobs=values[:num_top],
        )


def shown_logprobs(
    device: Device, logits: torch.Tensor, tokens: torch.Tensor, num_top: int
) -> ShownLogprobs:
    """logits: [num_sampled, vocab] as the model gave them.  tokens: int64 [num_sampled]"""
    top = torch.topk(logits, min(num_top, logits.shape[1])).indices
    token_ids = torch.cat([tokens[:, None], top], dim=1)
    return ShownLogprobs(device.download(token_ids), device.download(logprobs(logits, token_ids)))
