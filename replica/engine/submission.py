"""A request as the engine is asked for it: one sequence per choice.

All choices read the same prompt, so all but the first find its blocks computed or under way.  The
first one's prompt is the one that counts.
"""

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

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


def submissions(work: Work, first_sequence_id: int, time_left_s: float | None) -> list[Submit]:
    """In the order of the choices, which is the order of their ids."""
    token_ids = [*work.prompt_token_ids, *work.resume_token_ids]
    return [
        Submit(
            sequence_id=first_sequence_id + index,
            prompt_token_ids=token_ids,
            params=msgspec.structs.replace(work.params, seed=choice_seed(work.params.seed, index)),
            cache_salt=work.cache_salt,
            priority=work.priority,
            time_left_s=time_left_s,
            num_resumed_tokens=len(work.resume_token_ids),
            is_prompt_counted=index == 0,
        )
        for index in range(work.num_choices)
    ]


def choice_seed(seed: int, index: int) -> int:
    """64 bits.  The first choice is what the seed gives alone; the others are unlike it."""
    if index == 0:
        return seed
    digest = hashlib.blake2b(struct.pack("<qQ", seed, index), digest_size=8, person=b"choice")
    return int.from_bytes(digest.digest(), "little", signed=True)
