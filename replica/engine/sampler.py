"""The next token of one row.

A draw is a function of the logits, the seed and the position: one uniform number is hashed
from the last two and looked up in the cumulative distribution.  No generator is shared, so the same
seed gives the same tokens alone, in any batch, and after a preemption.
"""

import hashlib
import struct

import numpy as np
import numpy.typing as npt

from replica.engine.messages import SamplingParams

Logits = npt.NDArray[np.float32]
Probabilities = npt.NDArray[np.float64]

_FIRST_CANDIDATES = (
    1024  # a nucleus is nearly always smaller; sorting 49,152 logits takes milliseconds
)


def sample(logits: Logits, params: SamplingParams, position: int) -> int:
    """logits: [vocab] float32, finite or -inf."""
    if is_greedy(params):
        return int(logits.argmax())
    # In float64, and from the maximum: a tiny temperature must neither overflow nor lose the order.
    with np.errstate(over="ignore"):
        scaled = (logits.astype(np.float64) - float(logits.max())) / params.temperature
    probabilities = np.exp(scaled)
    probabilities /= probabilities.sum()
    if params.min_p > 0.0:
        floor = params.min_p * probabilities.max()
        probabilities[probabilities < floor] = 0.0
        probabilities /= probabilities.sum()
    token_ids, weights = _truncate(probabilities, params)
    cumulative = weights.cumsum()
    draw = uniform(params.seed, position) * cumulative[-1]
    index = min(int(np.searchsorted(cumulative, draw, side="right")), len(weights) - 1)
    return index if token_ids is None else int(token_ids[index])


def is_greedy(params: SamplingParams) -> bool:
    """Whether the most likely token is taken, whatever the seed."""
    return params.temperature == 0.0 or params.top_p == 0.0 or params.top_k == 1


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) with 53 random bits."""
    digest = hashlib.blake2b(struct.pack("<qQ", seed, position), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53


def _truncate(
    probabilities: Probabilities, params: SamplingParams
) -> tuple[npt.NDArray[np.intp] | None, Probabilities]:
    """(token ids, their weights), most likely first; ids are None when nothing was cut off.

    top_k first, then the nucleus: the smallest set whose mass reaches top_p (Holtzman et al. 2020).
    """
    is_cut = 0 < params.top_k < len(probabilities)
    if params.top_p >= 1.0 and not is_cut:
        return None, probabilities
    num_candidates = params.top_k if is_cut else min(_FIRST_CANDIDATES, len(probabilities))
    token_ids = _likeliest(probabilities, num_candidates)
    if params.top_p >= 1.0:
        return token_ids, probabilities[token_ids]
    if not is_cut and probabilities[token_ids].sum() < params.top_p:
        token_ids = _likeliest(probabilities, len(probabilities))
    weights = probabilities[token_ids]
    total = weights.sum() if is_cut else 1.0
    mass_before = weights.cumsum() - weights
    num_kept = max(1, int((mass_before < params.top_p * total).sum()))
    return token_ids[:num_kept], weights[:num_kept]


def _likeliest(probabilities: Probabilities, count: int) -> npt.NDArray[np.intp]:
    """Token ids, most likely first; of equals, the smallest id first."""
    if count == len(probabilities):
        return np.argsort(-probabilities, kind="stable")
    chosen = np.sort(np.argpartition(-probabilities, count - 1)[:count])
    return chosen[np.argsort(-probabilities[chosen], kind="stable")]
