"""What the model itself thought of the tokens it drew, while the logits are on the device."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from kernels.sampling.triton_op import logprobs
from replica.engine.batch import SampledRow
from replica.engine.messages import TokenLogprobs
from replica.gpu.device import Device
from replica.gpu.inputs import HostDraws


@dataclass(frozen=True, slots=True)
class ShownLogprobs:
    """On the host, of the rows that asked: of the token that was drawn, then of the likeliest."""

    places: Mapping[int, int]  # by sampled row
    token_ids: torch.Tensor  # int64 [num_asking, 1 + num_top]
    values: torch.Tensor  # float32, like them

    def of(self, index: int, row: SampledRow) -> TokenLogprobs | None:
        """None: that row wants none."""
        num_top = row.params.num_top_logprobs
        if num_top is None:
            return None
        place = self.places[index]
        chosen, *values = self.values[place].tolist()
        return TokenLogprobs(
            logprob=chosen,
            top_token_ids=self.token_ids[place, 1 : 1 + num_top].tolist(),
            top_logprobs=values[:num_top],
        )


def shown_logprobs(
    device: Device, logits: torch.Tensor, tokens: torch.Tensor, draws: HostDraws
) -> ShownLogprobs:
    """logits: [num_asking, vocab] as the model gave them.  tokens: int64 [num_asking]"""
    top = torch.topk(logits, min(draws.num_top_logprobs, logits.shape[1])).indices
    token_ids = torch.cat([tokens[:, None], top], dim=1)
    return ShownLogprobs(
        places={index: place for place, index in enumerate(draws.asking.tolist())},
        token_ids=device.download(token_ids),
        values=device.download(logprobs(logits, token_ids)),
    )
