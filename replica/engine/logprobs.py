"""What the model itself thought of a token: before temperature, bans and cuts, as OpenAI means it.

In NumPy, where logits have come to the host: only rows that somebody asked about pay for it.
"""

import numpy as np
import numpy.typing as npt

from replica.engine.batch import SampledRow
from replica.engine.messages import TokenLogprobs
from replica.engine.step import SampledToken

Logits = npt.NDArray[np.float32]
TokenIds = npt.NDArray[np.intp]


def shown_logits(logits: Logits, row: SampledRow) -> Logits | None:
    """A copy, if somebody asks about the row: what is banned later is banned in place."""
    return None if row.params.num_top_logprobs is None else logits.copy()


def sampled_token(row: SampledRow, token_id: int, shown: Logits | None) -> SampledToken:
    num_top = row.params.num_top_logprobs
    if shown is None or num_top is None:
        return SampledToken(token_id, is_finite=True)
    return SampledToken(token_id, is_finite=True, logprobs=logprobs_of(shown, token_id, num_top))


def logprobs_of(logits: Logits, token_id: int, num_top: int) -> TokenLogprobs:
    """logits: [vocab], finite."""
    log_sum = _log_sum_exp(logits)
    top = likeliest(logits, min(num_top, len(logits)))
    return TokenLogprobs(
        logprob=float(logits[token_id]) - log_sum,
        top_token_ids=top.tolist(),
        top_logprobs=(logits[top].astype(np.float64) - log_sum).tolist(),
    )


def likeliest(logits: Logits, count: int) -> TokenIds:
    """Token ids, most likely first; of equals, the smallest id first."""
    if not count:
        return np.empty(0, np.intp)
    if count < len(logits):
        least = -np.partition(-logits, count - 1)[count - 1]
        above = np.flatnonzero(logits > least)
        equal = np.flatnonzero(logits == least)[: count - len(above)]
        chosen = np.concatenate([above, equal])
    else:
        chosen = np.arange(len(logits))
    return chosen[np.argsort(-logits[chosen], kind="stable")]


def _log_sum_exp(logits: Logits) -> float:
    largest = float(logits.max())
    return largest + float(np.log(np.exp(logits - np.float32(largest)).sum(dtype=np.float64)))
