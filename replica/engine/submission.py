"""A request as the engine is asked for it, and what its choices draw from.

All choices read the same prompt, which is sent once: one sequence each, and all but the first find
its blocks computed or under way.
"""

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from replica.engine.messages import SamplingParams, Submit


@dataclass(frozen=True, slots=True)
class Work:
    """What the engine is asked to do.  It has been proven to fit."""

    prompt_token_ids: Sequence[int]
    params: SamplingParams
    num_choices: int = 1
    cache_salt: str = ""
    priority: int = 0
    max_time_s: float | None = None
    resume_token_ids: Sequence[int] = ()
    adapter: int | None = None  # of the configured ones


def submission(work: Work, first_sequence_id: int, time_left_s: float | None) -> Submit:
    return Submit(
        sequence_id=first_sequence_id,
        prompt_token_ids=[*work.prompt_token_ids, *work.resume_token_ids],
        params=work.params,
        cache_salt=work.cache_salt,
        priority=work.priority,
        time_left_s=time_left_s,
        num_resumed_tokens=len(work.resume_token_ids),
        num_choices=work.num_choices,
        adapter=work.adapter,
    )


def choice_seed(seed: int, index: int) -> int:
    """64 bits.  The first choice is what the seed gives alone; the others are unlike it."""
    if index == 0:
        return seed
    digest = hashlib.blake2b(struct.pack("<qQ", seed, index), digest_size=8, person=b"choice")
    return int.from_bytes(digest.digest(), "little", signed=True)
