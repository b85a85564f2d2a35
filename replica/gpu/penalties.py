"""Penalties of the rows that ask for them: what they saw is counted anew in each step.

Nothing is kept between steps, so nothing has to follow a sequence that is preempted or moves to
another row.  It costs two arrays of a vocabulary a row, and the upload of its tokens.
"""

import torch

from kernels.sampling.rows_reference import Penalties
from kernels.sampling.triton_op import penalize_
from replica.gpu.device import Device
from replica.gpu.inputs import HostPenalties


def penalize_rows_(
    device: Device, logits: torch.Tensor, own_tokens: torch.Tensor, host: HostPenalties
) -> None:
    """In place.  own_tokens: int64 [num_sampled], of each row its own."""
    rows = device.upload(host.rows)
    chosen = logits[rows]
    repetition, presence, frequency = device.upload(host.strengths)
    counts, is_in_prompt = _seen(device, own_tokens[rows], host, logits.shape[1])
    penalize_(chosen, Penalties(counts, is_in_prompt, repetition, presence, frequency))
    logits.index_copy_(0, rows, chosen)


def _seen(
    device: Device, own_tokens: torch.Tensor, host: HostPenalties, vocab: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """[num_penalized, vocab]: how often the completion holds each token, whether the prompt does.

    Sums of integers: in whatever order they are added.
    """
    shape, place = (len(own_tokens), vocab), own_tokens.device
    counts = torch.zeros(shape, dtype=torch.int32, device=place)
    is_in_prompt = torch.zeros(shape, dtype=torch.bool, device=place)
    if host.completion.size:
        completion = _flat(device.upload(host.completion), vocab)
        ones = torch.ones(1, dtype=torch.int32, device=place).expand(len(completion))
        counts.view(-1).scatter_add_(0, completion, ones)
    if host.prompt.size:
        is_in_prompt.view(-1).index_fill_(0, _flat(device.upload(host.prompt), vocab), 1)
    is_own_in_prompt = device.upload(host.is_own_in_prompt)
    own = own_tokens[:, None]
    counts.scatter_add_(1, own, (~is_own_in_prompt[:, None]).int())
    is_in_prompt.scatter_(1, own, is_in_prompt.gather(1, own) | is_own_in_prompt[:, None])
    return counts, is_in_prompt


def _flat(placed: torch.Tensor, vocab: int) -> torch.Tensor:
    """In place: as much again would be asked for otherwise."""
    flat: torch.Tensor = placed[0]
    return flat.mul_(vocab).add_(placed[1])
