"""The next token of one row.

A draw is a function of the logits, the seed and the position: one uniform number is hashed
from the last two and looked up in the cumulative distribution.  No generator is shared, so the same
seed gives the same tokens alone, in any batch, and after a preemption.

``kernels.sampling`` says what is drawn, and draws it where compiled code runs.  Here is the same in
NumPy, for steps in torch.
"""

import hashlib
import struct
from collections.abc import Collection

import numpy as np
import numpy.typing as npt

from kernels.sampling.draw import Draw
from replica.engine.batch import SampledRow
from replica.engine.logprobs import Logits, TokenIds, likeliest
from replica.engine.messages import SamplingParams
from replica.engine.penalties import penalize_

Masses = npt.NDArray[np.float64]

_FIRST_CANDIDATES = (
    1024  # a nucleus is nearly always smaller; sorting 49,152 logits takes milliseconds
)


def sample(logits: Logits, params: SamplingParams, position: int) -> int:
    """logits: [vocab] float32, finite or -inf."""
    if is_greedy(params):
        return int(logits.argmax())
    draw = draw_of(params, position)
    # In float64, and from the maximum: a tiny temperature must neither overflow nor lose the order.
    with np.errstate(over="ignore"):
        scaled = (logits.astype(np.float64) - float(logits.max())) / draw.temperature
    masses = np.exp(scaled)
    masses[masses < draw.min_p] = 0.0
    token_ids = _kept(logits, masses, draw)
    if token_ids is not None:
        masses = masses[token_ids]
    cumulative = masses.cumsum()
    index = int(np.searchsorted(cumulative, draw.uniform * cumulative[-1], side="right"))
    index = min(index, len(masses) - 1)
    return index if token_ids is None else int(token_ids[index])


def is_greedy(params: SamplingParams) -> bool:
    """Whether the most likely token is taken, whatever the seed."""
    return params.temperature == 0.0 or params.top_p == 0.0 or params.top_k == 1


def biases_of(row: SampledRow, eos_token_ids: Collection[int]) -> dict[int, float]:
    """What is added to the row's logits, by token id."""
    if not row.is_eos_banned:
        return row.params.logit_bias
    return row.params.logit_bias | dict.fromkeys(eos_token_ids, float("-inf"))


def adjust_(
    logits: Logits, row: SampledRow, own_token_id: int, eos_token_ids: Collection[int]
) -> bool:
    """What was asked to be changed of them, in place, in vLLM's order; False: nothing was.

    own_token_id: the row's, as its batch has it.
    """
    biases = biases_of(row, eos_token_ids)
    for token_id, bias in biases.items():
        logits[token_id] += bias
    if row.seen is not None:
        penalize_(logits, row.params, row.seen, own_token_id)
    return bool(biases) or row.seen is not None


def draw_of(params: SamplingParams, position: int) -> Draw:
    """For params that are not greedy."""
    return Draw(
        uniform=uniform(params.seed, position),
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=params.top_k,
        min_p=params.min_p,
    )


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) with 53 random bits."""
    digest = hashlib.blake2b(struct.pack("<qQ", seed, position), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53


def _kept(logits: Logits, masses: Masses, draw: Draw) -> TokenIds | None:
    """Ids that top_k and top_p leave, ascending.  None: all."""
    is_cut = 0 < draw.top_k < len(logits)
    if draw.top_p >= 1.0 and not is_cut:
        return None
    ranked = likeliest(logits, draw.top_k if is_cut else min(_FIRST_CANDIDATES, len(logits)))
    if draw.top_p < 1.0:
        target = draw.top_p * float(masses[ranked].sum() if is_cut else masses.sum())
        if not is_cut and masses[ranked].sum() < target:
            ranked = likeliest(logits, len(logits))
        mass_before = masses[ranked].cumsum() - masses[ranked]
        ranked = ranked[: max(1, int((mass_before < target).sum()))]
    return np.sort(ranked)
