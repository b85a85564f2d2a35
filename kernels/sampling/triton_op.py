"""The only names the engine imports: check shapes, then launch."""

from typing import Final

import torch
import triton

from kernels.devices import runs_triton
from kernels.sampling.kernel import sample_kernel
from kernels.sampling.logits_kernel import bias_kernel, logprobs_kernel, penalize_kernel
from kernels.sampling.rows_reference import (
    Draws,
    LogitBias,
    Penalties,
    bias_reference,
    draw_reference,
    logprobs_reference,
    penalize_reference,
)

_BLOCK: Final = 4096  # tokens at a time
_LEAST_IDS: Final = 32  # of logprobs: whoever asks for fewer has no kernel of its own compiled


def sample(logits: torch.Tensor, draws: Draws) -> torch.Tensor:
    """See ``rows_reference.draw_reference`` for the definition and the shapes."""
    _check(logits)
    if not runs_triton(logits):
        return draw_reference(logits, draws)
    num_rows, vocab = logits.shape
    tokens = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    if num_rows:
        size = (0, 0) if draws.are_greedy else (num_rows, vocab)
        weights = torch.empty(size, dtype=torch.float32, device=logits.device)
        sample_kernel[(num_rows,)](
            logits, draws.temperatures, draws.top_ks, draws.top_ps, draws.min_ps, draws.uniforms,
            weights, tokens, logits.stride(0), vocab, ARE_GREEDY=draws.are_greedy,
            BLOCK=_block(vocab), num_warps=16,
        )  # fmt: skip
    return tokens


def penalize_(logits: torch.Tensor, penalties: Penalties) -> None:
    """In place.  See ``rows_reference.penalize_reference``."""
    _check(logits)
    if not runs_triton(logits):
        logits.copy_(penalize_reference(logits, penalties))
    elif len(logits):
        num_rows, vocab = logits.shape
        block = min(1024, _block(vocab))
        penalize_kernel[(num_rows, triton.cdiv(vocab, block))](
            logits, penalties.counts, penalties.is_in_prompt.view(torch.int8),
            penalties.repetition, penalties.presence, penalties.frequency, logits.stride(0), vocab,
            BLOCK=block,
        )  # fmt: skip


def bias_(logits: torch.Tensor, bias: LogitBias) -> None:
    """In place.  See ``rows_reference.bias_reference``."""
    _check(logits)
    if not runs_triton(logits):
        logits.copy_(bias_reference(logits, bias))
    elif len(bias.rows):
        bias_kernel[(len(bias.rows),)](
            logits, bias.rows, bias.token_ids, bias.values, logits.stride(0), logits.shape[1],
            num_warps=1,
        )  # fmt: skip


def logprobs(logits: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
    """token_ids: within the vocabulary.  See ``rows_reference.logprobs_reference``."""
    _check(logits)
    if not runs_triton(logits):
        return logprobs_reference(logits, token_ids)
    result = torch.empty(token_ids.shape, dtype=torch.float32, device=logits.device)
    if token_ids.numel():
        num_ids = token_ids.shape[1]
        logprobs_kernel[(len(logits),)](
            logits, token_ids.contiguous(), result, logits.stride(0), logits.shape[1], num_ids,
            BLOCK=_block(logits.shape[1]),
            IDS_BLOCK=max(_LEAST_IDS, triton.next_power_of_2(num_ids)), num_warps=8,
        )  # fmt: skip
    return result


def _block(vocab: int) -> int:
    return min(_BLOCK, int(triton.next_power_of_2(vocab)))


def _check(logits: torch.Tensor) -> None:
    if logits.ndim != 2 or not logits.shape[1] or logits.stride(1) != 1:
        raise ValueError(f"expected contiguous rows of a vocabulary, got {tuple(logits.shape)}")
