"""The definitions for rows of any device, in plain PyTorch; of a draw, one row after the other."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from kernels.sampling.draw import Draw
from kernels.sampling.reference import sample_reference


@dataclass(frozen=True, slots=True)
class Draws:
    """How each row's token is drawn.  All tensors are [num_rows], on the logits' device."""

    temperatures: torch.Tensor  # float64; 0: the most likely token
    top_ks: torch.Tensor  # int32; 0: all
    top_ps: torch.Tensor  # float64; 0: the most likely token
    min_ps: torch.Tensor  # float64
    uniforms: torch.Tensor  # float64 in [0, 1): all the randomness of the draw
    are_greedy: bool = False  # all of them, whatever stands in the tensors


@dataclass(frozen=True, slots=True)
class Penalties:
    counts: torch.Tensor  # [num_rows, vocab] int32: of each token in the output so far
    is_in_prompt: torch.Tensor  # [num_rows, vocab] bool
    repetition: torch.Tensor  # [num_rows] float32; 1: none
    presence: torch.Tensor  # [num_rows] float32; 0: none
    frequency: torch.Tensor  # likewise


@dataclass(frozen=True, slots=True)
class LogitBias:
    """Entries; no (row, token) twice.  A token outside the vocabulary changes nothing."""

    rows: torch.Tensor  # [num_entries] int64
    token_ids: torch.Tensor  # [num_entries] int64
    values: torch.Tensor  # [num_entries] float32; -inf bans


def draw_reference(logits: torch.Tensor, draws: Draws) -> torch.Tensor:
    """[num_rows, vocab] -> [num_rows] int64.  See ``reference.sample_reference``, of each row."""
    rows = logits.float().cpu().numpy()
    tokens = [_draw_row(row, draws, index) for index, row in enumerate(rows)]
    return torch.tensor(tokens, dtype=torch.int64, device=logits.device)


def _draw_row(row: npt.NDArray[np.float32], draws: Draws, index: int) -> int:
    temperature, top_p = float(draws.temperatures[index]), float(draws.top_ps[index])
    top_k = int(draws.top_ks[index])
    if draws.are_greedy or temperature == 0.0 or top_p == 0.0 or top_k == 1:
        return int(row.argmax())
    return sample_reference(
        row,
        Draw(
            uniform=float(draws.uniforms[index]),
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            min_p=float(draws.min_ps[index]),
        ),
    )


def penalize_reference(logits: torch.Tensor, penalties: Penalties) -> torch.Tensor:
    """Repetition divides what is positive and multiplies what is not, of all tokens seen; the
    others are subtracted, once and once per occurrence in the output.

    Source: Keskar et al. 2019, "CTRL"; the OpenAI API reference.
    """
    x, counts = logits.float(), penalties.counts
    repetition = penalties.repetition[:, None]
    is_seen = (counts > 0) | penalties.is_in_prompt
    x = torch.where(is_seen, torch.where(x > 0, x / repetition, x * repetition), x)
    x = x - penalties.frequency[:, None] * counts - penalties.presence[:, None] * (counts > 0)
    return x.to(logits.dtype)


def bias_reference(logits: torch.Tensor, bias: LogitBias) -> torch.Tensor:
    """Each entry's value added to its place."""
    is_known = (bias.token_ids >= 0) & (bias.token_ids < logits.shape[1])
    x = logits.float()
    place = (bias.rows[is_known], bias.token_ids[is_known])
    x[place] = x[place] + bias.values[is_known]
    return x.to(logits.dtype)


def logprobs_reference(logits: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
    """log softmax(logits) of each row's tokens.  [num_rows, vocab] and [num_rows, n] ids"""
    return torch.log_softmax(logits.float(), dim=-1).gather(1, token_ids)
