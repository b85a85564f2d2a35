"""Where more tokens cost more time, a step ends where a prompt does: the next one's wait."""

from replica.engine.messages import SamplingParams
from replica.engine.prefix import PrefixIdentity
from replica.engine.scheduler import SchedulerLimits
from replica.engine.sequence import Prompt, Sequence, Standing
from replica.engine.step import StepPlan
from tests.replica.engine_harness import EngineHarness
from tests.replica.hash_model import EOS, TOKEN_BYTES, HashModel

PARAMS = SamplingParams(max_tokens=40, ignore_eos=True)
ENOUGH, MOST = 4, 16


def engine_of(enough_prompt_tokens: int | None) -> EngineHarness:
    limits = SchedulerLimits(4, 8, MOST, enough_prompt_tokens=enough_prompt_tokens)
    return EngineHarness(HashModel(4), TOKEN_BYTES, [EOS], limits, num_blocks=64)


def sequence_of(number: int, prompt: list[int]) -> Sequence:
    return Sequence(
        sequence_id=number,
        standing=Standing(number, "tenant", priority=0, submitted_at_s=0.0),
        prompt=Prompt(prompt),
        params=PARAMS,
        root=PrefixIdentity("test", "float32").root("tenant"),
    )


def step_tokens(enough_prompt_tokens: int | None, *prompts: list[int]) -> list[int]:
    """Of all steps until each has its first token."""
    engine, sizes = engine_of(enough_prompt_tokens), list[int]()
    engine.on_report = lambda report: sizes.append(report.num_batched_tokens)
    ids = engine.submit_together(prompts, PARAMS)
    while not all(engine.outcomes[each].num_tokens for each in ids):
        engine.step()
    return sizes


def test_a_step_ends_with_a_prompt() -> None:
    first, second = [1] * 22, [2] * 10
    assert step_tokens(None, first, second) == [16, 16]
    assert step_tokens(ENOUGH, first, second) == [16, 6, 1 + 10]


def test_so_it_does_where_the_next_one_came_later() -> None:
    engine, sizes = engine_of(ENOUGH), list[int]()
    engine.on_report = lambda report: sizes.append(report.num_batched_tokens)
    first = engine.submit([1] * 22, PARAMS)
    second = engine.submit([2] * 10, PARAMS)
    assert sizes == [16, 6]
    assert (engine.outcomes[first].num_tokens, engine.outcomes[second].num_tokens) == (1, 0)


def test_a_short_end_takes_others_along_until_they_are_enough() -> None:
    assert step_tokens(ENOUGH, [1, 2], [2] * 10) == [2 + 2, 1 + 8]
    assert step_tokens(ENOUGH, [1, 2], [2, 3], [3] * 10) == [2 + 2, 2 + 10]
    assert step_tokens(ENOUGH, [1, 2, 3], [2] * 5, [3] * 5) == [3 + 1, 1 + 4, 2 + 5]


def test_where_many_wait_steps_are_filled_as_ever() -> None:
    prompts = [[n] * 10 for n in range(1, 5)]
    assert step_tokens(ENOUGH, *prompts[:3]) == [10, 1 + 10, 2 + 10]
    assert step_tokens(ENOUGH, *prompts)[0] == MOST


def test_answers_go_on_beside_each_of_them() -> None:
    engine = engine_of(ENOUGH)
    answering = engine.submit([5, 6, 7], PARAMS)
    engine.enqueue([1] * 10, PARAMS)
    engine.enqueue([2] * 10, PARAMS)
    for num_tokens in (2, 3):
        engine.step()
        assert engine.outcomes[answering].num_tokens == num_tokens


def test_of_a_prompt_one_token_ends_a_step_too() -> None:
    assert step_tokens(ENOUGH, [1], [2] * 10) == [1 + 3, 1 + 7]


def test_a_prompt_that_gave_its_place_up_ends_no_step() -> None:
    plan = StepPlan(MOST, ENOUGH)
    first, second = sequence_of(1, [1] * 10), sequence_of(2, [2] * 2)
    plan.put(first, 10, is_sampled=True)
    plan.put(second, 2, is_sampled=False)
    assert plan.num_free_tokens == 0
    plan.drop(first)
    assert plan.num_free_tokens == MOST - 2
    assert [chunk.sequence for chunk in plan.chunks()] == [second]


def test_where_blocks_run_out_all_are_served() -> None:
    """Whoever is displaced comes back."""
    limits = SchedulerLimits(4, 8, MOST, enough_prompt_tokens=ENOUGH)
    engine = EngineHarness(HashModel(4), TOKEN_BYTES, [EOS], limits, num_blocks=8)
    ids = engine.submit_together([[1] * 9, [2] * 9, [3] * 9], SamplingParams(max_tokens=8))
    engine.run()
    assert all(engine.outcomes[each].finish_reason is not None for each in ids)
