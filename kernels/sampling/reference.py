"""The definition, with a sort."""

import numpy as np
import numpy.typing as npt

from kernels.sampling.draw import Draw


def sample_reference(logits: npt.NDArray[np.float32], draw: Draw) -> int:
    """Tokens are ranked by their logits, of equals the smallest id first.

    Kept are those not less likely than ``min_p`` times the likeliest; of these the ``top_k`` first;
    of these the first whose mass reaches ``top_p`` of it (Holtzman et al. 2020), one at least.  The
    token is where the cumulative mass of the kept, by id, exceeds ``uniform`` of their sum.

    logits: [vocab], finite or -inf, one at least finite.
    """
    with np.errstate(over="ignore"):  # a tiny temperature
        scaled = (logits.astype(np.float64) - float(logits.max())) / draw.temperature
    weights = np.exp(scaled)
    weights[weights < draw.min_p] = 0.0
    ranked = np.argsort(-logits, kind="stable")
    if 0 < draw.top_k < len(logits):
        weights[ranked[draw.top_k :]] = 0.0
    if draw.top_p < 1.0:
        masses = weights[ranked]
        mass_before = masses.cumsum() - masses
        num_kept = int((mass_before < draw.top_p * masses.sum()).sum())
        weights[ranked[max(1, num_kept) :]] = 0.0
    cumulative = weights.cumsum()
    index = int(np.searchsorted(cumulative, draw.uniform * cumulative[-1], side="right"))
    return min(index, int(weights.nonzero()[0][-1]))
