"""The engine with a model that notices every wrong read."""

import pytest

from replica.engine.messages import FinishReason, SamplingParams, Usage
from replica.engine.scheduler import SchedulerLimits
from tests.replica.engine_harness import EngineHarness
from tests.replica.hash_model import EOS, TOKEN_BYTES, HashModel, reference_completion
from tests.replica.workload import check_counters, text_of


def harness(
    *,
    block_size: int = 4,
    num_blocks: int = 64,
    max_num_seqs: int = 8,
    max_num_batched_tokens: int = 16,
    poisoned_token: int | None = None,
) -> EngineHarness:
    return EngineHarness(
        HashModel(block_size, poisoned_token),
        TOKEN_BYTES,
        [EOS],
        SchedulerLimits(block_size, max_num_seqs, max_num_batched_tokens),
        num_blocks,
    )


def test_preempted_sequences_finish_in_order_of_arrival_and_unchanged() -> None:
    engine = harness(block_size=4, num_blocks=13, max_num_seqs=4)
    params = SamplingParams(max_tokens=24, ignore_eos=True)
    prompts = [[i, i + 1, i + 2, i + 3, i + 4] for i in (1, 10, 20, 30)]
    ids = engine.submit_together(prompts, params)
    finished: list[int] = []
    while engine.step() is not None:
        finished += [i for i in ids if engine.outcomes[i].usage and i not in finished]
    assert engine.stats.num_preemptions > 0
    assert finished == ids
    for sequence_id, prompt in zip(ids, prompts, strict=True):
        assert engine.outcomes[sequence_id].text == text_of(reference_completion(prompt, params))
    check_counters(engine)


def test_equal_prefix_is_cached_and_at_least_one_token_recomputed() -> None:
    engine = harness(block_size=4)
    prompt = list(range(1, 9))  # exactly two blocks
    params = SamplingParams(max_tokens=3, ignore_eos=True)
    first, second = engine.submit(prompt, params), None
    engine.run()
    second = engine.submit(prompt, params)
    engine.run()
    assert engine.outcomes[first].usage.cached_prompt_tokens == 0
    assert engine.outcomes[second].usage.cached_prompt_tokens == 4
    assert engine.outcomes[second].text == engine.outcomes[first].text


def test_prefix_is_not_shared_across_salts() -> None:
    engine = harness(block_size=4)
    params = SamplingParams(max_tokens=1)
    for salt in ("tenant-a", "tenant-b", ""):
        sequence_id = engine.submit(list(range(1, 20)), params, salt)
        engine.run()
        assert engine.outcomes[sequence_id].usage.cached_prompt_tokens == 0


@pytest.mark.parametrize("num_blocks", [200, 14], ids=["room for both", "one evicts the other"])
@pytest.mark.parametrize("num_steps_later", [0, 1, 30])
def test_what_others_asked_shows_in_nothing_a_tenant_sees(
    num_blocks: int, num_steps_later: int
) -> None:
    """Neither in when its tokens come, nor in its counts: the same prompt, or quite another."""
    secret = [1 + i % 50 for i in range(30)]
    other = [51 + i % 9 for i in range(30)]
    params = SamplingParams(max_tokens=12, ignore_eos=True)

    def seen_by_b(prompt_of_a: list[int]) -> list[tuple[int, str, object]]:
        engine = harness(num_blocks=num_blocks, max_num_batched_tokens=8)
        engine.submit([*prompt_of_a, 7], params, cache_salt="a")
        for _ in range(num_steps_later):
            engine.step()
        b = engine.submit([*secret, 8], params, cache_salt="b")
        seen = []
        while engine.outcomes[b].finish_reason is None:
            engine.step()
            seen.append((engine.outcomes[b].num_tokens, engine.outcomes[b].text, engine.now_s))
        return [*seen, (0, "", engine.outcomes[b].usage)]

    assert seen_by_b(secret) == seen_by_b(other)


def test_colliding_hashes_never_show_one_prompt_to_another() -> None:
    limits = SchedulerLimits(4, 8, 16)
    engine = EngineHarness(
        HashModel(4), TOKEN_BYTES, [EOS], limits, 64, lambda parent, tokens: bytes(16)
    )
    params = SamplingParams(max_tokens=6, ignore_eos=True)
    prompts = [[first, *range(2, 20)] for first in range(1, 9)]
    for salt in ("a", "b"):
        ids = [engine.submit(prompt, params, salt) for prompt in prompts]
        engine.run()
        for sequence_id, prompt in zip(ids, prompts, strict=True):
            outcome = engine.outcomes[sequence_id]
            assert outcome.text == text_of(reference_completion(prompt, params))
            assert outcome.usage.cached_prompt_tokens == 0
    again = engine.submit(prompts[0], params, "a")
    engine.run()
    assert engine.outcomes[again].usage.cached_prompt_tokens == 4, "nothing would be shared anyway"


def test_abort_before_the_first_step_counts_nothing() -> None:
    engine = harness(max_num_seqs=1)
    engine.submit([1, 2, 3], SamplingParams(max_tokens=50, ignore_eos=True))
    waiting = engine.submit([4, 5, 6], SamplingParams(max_tokens=5))
    engine.abort(waiting)
    assert engine.outcomes[waiting].usage == Usage()
    assert engine.outcomes[waiting].finish_reason is FinishReason.ABORT


def test_abort_in_the_middle_of_a_prompt_counts_what_was_processed() -> None:
    engine = harness(max_num_batched_tokens=8)
    sequence_id = engine.submit([1] * 30, SamplingParams(max_tokens=5))
    engine.step()
    engine.abort(sequence_id)
    assert engine.outcomes[sequence_id].usage == Usage(prompt_tokens=16)
    check_counters(engine)


def test_decoding_goes_on_while_a_long_prompt_is_prefilled() -> None:
    engine = harness(max_num_batched_tokens=8, num_blocks=200)
    short = engine.submit([1, 2, 3], SamplingParams(max_tokens=60, ignore_eos=True))
    long = engine.submit([5] * 60, SamplingParams(max_tokens=2, ignore_eos=True))
    while not engine.outcomes[long].num_tokens:
        before = engine.outcomes[short].num_tokens
        engine.step()
        assert engine.outcomes[short].num_tokens == before + 1


def test_sequence_that_cannot_fit_the_pool_is_refused() -> None:
    engine = harness(block_size=4, num_blocks=3)
    with pytest.raises(ValueError, match="do not fit"):
        engine.submit([1] * 8, SamplingParams(max_tokens=1))


def test_numbers_that_are_not_finite_fail_their_request_alone_and_are_not_cached() -> None:
    poisoned = 63
    engine = harness(block_size=4, poisoned_token=poisoned)
    params = SamplingParams(max_tokens=4, ignore_eos=True)
    healthy = [1, 2, 3, 4, 5, 6, 7, 8, 9]
    bad, good = engine.submit_together([[poisoned, *healthy], healthy], params)
    engine.run()
    assert engine.outcomes[bad].finish_reason is FinishReason.ERROR
    assert engine.outcomes[good].text == text_of(reference_completion(healthy, params))
    again = engine.submit([poisoned, *healthy], params)
    engine.run()
    assert engine.outcomes[again].usage.cached_prompt_tokens == 0
    check_counters(engine)


def test_min_tokens_keeps_the_end_away() -> None:
    for first in range(1, 40):
        params = SamplingParams(max_tokens=30, min_tokens=20)
        engine = harness()
        sequence_id = engine.submit([first, 2, 3], params)
        engine.run()
        assert engine.outcomes[sequence_id].num_tokens >= 20


@pytest.mark.parametrize("stop_length", [1, 2, 3])
def test_stop_string_ends_text_and_count_at_the_token_that_completes_it(stop_length: int) -> None:
    prompt = [3, 1, 4, 1, 5]
    params = SamplingParams(max_tokens=20, ignore_eos=True)
    whole = text_of(reference_completion(prompt, params))
    stop = whole[8 : 8 + stop_length]
    end = whole.index(stop)
    engine = harness()
    stopping = SamplingParams(max_tokens=20, ignore_eos=True, stop=(stop, "never there"))
    sequence_id = engine.submit(prompt, stopping)
    engine.run()
    outcome = engine.outcomes[sequence_id]
    assert outcome.text == whole[:end]
    assert outcome.finish_reason is FinishReason.STOP
    num_eos = reference_completion(prompt, params)[: outcome.num_tokens].count(EOS)
    assert outcome.num_tokens == end + stop_length + num_eos
    check_counters(engine)


def test_prompts_of_all_lengths_prefilled_together_stay_apart() -> None:
    prompts = [[1 + (7 * n + i) % 60 for i in range(1 + 8 * n)] for n in range(65)]
    limits = SchedulerLimits(4, 65, 1024)
    engine = EngineHarness(HashModel(4), TOKEN_BYTES, [EOS], limits, num_blocks=6_000)
    params = SamplingParams(max_tokens=6, ignore_eos=True)
    ids = engine.submit_together(prompts, params)
    engine.run()
    texts = [engine.outcomes[sequence_id].text for sequence_id in ids]
    assert texts == [text_of(reference_completion(prompt, params)) for prompt in prompts]
    check_counters(engine)
