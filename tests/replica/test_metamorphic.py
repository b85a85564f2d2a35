"""However a workload is cut up, it gives the same tokens and leaves the same blocks behind."""

import itertools

import pytest

from replica.engine.launcher import InlineLauncher
from replica.engine.messages import SamplingParams
from replica.engine.scheduler import SchedulerLimits
from tests.replica.engine_harness import EngineHarness, NewLauncher
from tests.replica.hash_model import EOS, TOKEN_BYTES, HashModel, reference_completion
from tests.replica.launchers import EarlyLauncher, LateLauncher
from tests.replica.workload import check_counters, text_of

PARAMS = SamplingParams(max_tokens=20, ignore_eos=True, num_top_logprobs=0)
SHARED = [1 + i % 9 for i in range(33)]
PROMPTS = [SHARED, [*SHARED, 50], [*SHARED[:20], 51, 52], [7], list(range(1, 60))]
EVERYTHING = 4096
NUM_BLOCKS = 401  # nothing is ever evicted, so what stays cached can be compared

# 90 host blocks hold everything in blocks of 16, and not everybody in blocks of 1.
GRID = [
    case
    for case in itertools.product(
        (1, 7, 16, EVERYTHING), (True, False), (None, 0, 1, 3, 8, 20), (1, 4, 16), (0, 90)
    )
    if case[2] is not None or case[4] == 0
]


LAUNCHERS = (InlineLauncher, EarlyLauncher, LateLauncher)


@pytest.mark.parametrize("new_launcher", LAUNCHERS)
@pytest.mark.parametrize(
    ("chunk", "is_caching", "preempted_at", "block_size", "num_host_blocks"), GRID
)
def test_tokens_and_blocks_are_the_same(
    chunk: int,
    is_caching: bool,
    preempted_at: int | None,
    block_size: int,
    num_host_blocks: int,
    new_launcher: NewLauncher,
) -> None:
    limits = SchedulerLimits(block_size, 8, chunk, is_caching)
    engine = EngineHarness(
        HashModel(block_size),
        TOKEN_BYTES,
        [EOS],
        limits,
        NUM_BLOCKS,
        num_host_blocks=num_host_blocks,
        new_launcher=new_launcher,
    )
    ids = engine.submit_together(PROMPTS, PARAMS)
    for step in itertools.count():
        if step == preempted_at:
            for sequence_id in ids:
                engine.preempt(sequence_id)
        if engine.step() is None:
            break
    for sequence_id, prompt in zip(ids, PROMPTS, strict=True):
        outcome = engine.outcomes[sequence_id]
        assert outcome.text == text_of(reference_completion(prompt, PARAMS))
        places = range(len(prompt), len(prompt) + PARAMS.max_tokens)
        assert [-told.logprob for told in outcome.logprobs] == list(places)
        assert outcome.usage is not None
        assert outcome.usage.prompt_tokens == len(prompt)
    check_counters(engine)
    assert cached_tokens(engine) == (all_full_blocks(block_size) if is_caching else set())


def cached_tokens(engine: EngineHarness) -> set[tuple[int, ...]]:
    """Every cached block as the tokens up to its end."""
    found = set()
    for content in engine.blocks.contents:
        tokens: list[int] = []
        prefix = content
        while prefix.parent is not None:
            tokens[:0] = prefix.token_ids
            prefix = prefix.parent
        found.add(tuple(tokens))
    return found


def all_full_blocks(block_size: int) -> set[tuple[int, ...]]:
    """The last token of each answer is never computed."""
    texts = [[*p, *reference_completion(p, PARAMS)][:-1] for p in PROMPTS]
    return {tuple(t[:end]) for t in texts for end in range(block_size, len(t) + 1, block_size)}
