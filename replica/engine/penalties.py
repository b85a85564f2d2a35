"""Tokens that were there already, made less likely, or more: in NumPy, of one row.

A function of the row's tokens alone, and nothing is kept between steps: so an answer is the same
after a preemption, from another replica's beginning, and whatever was found in the cache.
``kernels.sampling.rows_reference`` is the definition.
"""

import numpy as np

from replica.engine.batch import SeenTokens
from replica.engine.logprobs import Logits
from replica.engine.messages import SamplingParams


def penalize_(logits: Logits, params: SamplingParams, seen: SeenTokens, own_token_id: int) -> None:
    """In place.  logits: [vocab]; what is -inf stays so."""
    tokens = np.append(np.asarray(seen.before, np.int64), own_token_id)
    if params.repetition_penalty != 1.0:
        penalty = np.float32(params.repetition_penalty)
        values = logits[tokens]  # of a token that is there twice twice the same
        logits[tokens] = np.where(values > 0, values / penalty, values * penalty)
    if params.presence_penalty or params.frequency_penalty:
        completion = tokens[seen.num_prompt_tokens :]
        token_ids, counts = np.unique(completion, return_counts=True)
        logits[token_ids] -= np.float32(params.frequency_penalty) * counts.astype(np.float32)
        logits[token_ids] -= np.float32(params.presence_penalty)
