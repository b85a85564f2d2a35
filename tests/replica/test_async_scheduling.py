"""Steps launched ahead of what is known: what turns out to be too much is dropped, without a trace.

Block lifetimes are tried by the workloads of ``test_engine_fuzz``; these are the cases by name.
"""

import pytest

from replica.engine.batch import FlatBatch
from replica.engine.launcher import ThreadLauncher, Tokens
from replica.engine.messages import FinishReason, SamplingParams, Usage
from replica.engine.scheduler import SchedulerLimits
from tests.replica.engine_harness import EngineHarness, NewLauncher
from tests.replica.hash_model import EOS, TOKEN_BYTES, HashModel, reference_completion
from tests.replica.launchers import EarlyLauncher, LateLauncher
from tests.replica.workload import check_counters, text_of

BLOCK_SIZE = 4
POISON = 63

pytestmark = pytest.mark.parametrize("new_launcher", [EarlyLauncher, LateLauncher, ThreadLauncher])


class RecordingModel(HashModel):
    """Remembers what each step computed."""

    def __init__(self, poisoned_token: int | None = None) -> None:
        super().__init__(BLOCK_SIZE, poisoned_token)
        self.positions: list[list[int]] = []

    def execute(self, batch: FlatBatch) -> Tokens:
        assert not batch.carried_tokens
        self.positions.append(list(batch.positions))
        return super().execute(batch)


def harness(
    model: HashModel, new_launcher: NewLauncher, *, num_blocks: int = 64, max_num_seqs: int = 8
) -> EngineHarness:
    limits = SchedulerLimits(BLOCK_SIZE, max_num_seqs, 64)
    return EngineHarness(model, TOKEN_BYTES, [EOS], limits, num_blocks, new_launcher=new_launcher)


def ending_early(num_tokens: int) -> list[int]:
    """A prompt whose answer ends by itself after so many tokens."""
    params = SamplingParams(max_tokens=100)
    prompts = ([1 + i % 60, 1 + i // 60] for i in range(3600))
    return next(p for p in prompts if len(reference_completion(p, params)) == num_tokens)


def test_a_step_is_launched_before_the_last_ones_tokens_are_known(
    new_launcher: NewLauncher,
) -> None:
    engine = harness(RecordingModel(), new_launcher)
    sequence_id = engine.submit([1, 2, 3], SamplingParams(max_tokens=4, ignore_eos=True))
    assert engine.outcomes[sequence_id].num_tokens == 0
    engine.step()
    assert engine.outcomes[sequence_id].num_tokens == 1
    engine.run()
    check_counters(engine)


def test_nothing_is_computed_beyond_the_last_allowed_token(new_launcher: NewLauncher) -> None:
    model = RecordingModel()
    engine = harness(model, new_launcher)
    engine.submit([1, 2, 3], SamplingParams(max_tokens=3, ignore_eos=True))
    engine.run()
    assert model.positions == [[0, 1, 2], [3], [4]]


def test_one_step_too_many_after_the_end_leaves_no_trace(new_launcher: NewLauncher) -> None:
    model = RecordingModel()
    engine = harness(model, new_launcher)
    prompt = ending_early(7)
    sequence_id = engine.submit(prompt, SamplingParams(max_tokens=100))
    engine.run()
    outcome = engine.outcomes[sequence_id]
    assert outcome.finish_reason is FinishReason.STOP
    assert outcome.usage == Usage(prompt_tokens=2, completion_tokens=7)
    assert len(model.positions) == 8, "the step launched ahead"
    again = engine.submit(prompt, SamplingParams(max_tokens=100))
    engine.run()
    assert engine.outcomes[again].text == outcome.text
    check_counters(engine)


def test_stop_string_found_a_step_late_is_neither_told_nor_counted(
    new_launcher: NewLauncher,
) -> None:
    prompt = [3, 1, 4, 1, 5]
    whole = reference_completion(prompt, SamplingParams(max_tokens=20, ignore_eos=True))
    text = text_of(whole)
    stop = text[8:10]
    engine = harness(RecordingModel(), new_launcher)
    sequence_id = engine.submit(
        prompt, SamplingParams(max_tokens=20, ignore_eos=True, stop=(stop,))
    )
    engine.run()
    outcome = engine.outcomes[sequence_id]
    assert outcome.text == text[: text.index(stop)]
    assert outcome.finish_reason is FinishReason.STOP
    num_tokens = next(n for n in range(20) if stop in text_of(whole[:n]))
    assert outcome.usage == Usage(prompt_tokens=5, completion_tokens=num_tokens)
    check_counters(engine)


def test_blocks_of_the_aborted_are_not_handed_on_while_they_are_written(
    new_launcher: NewLauncher,
) -> None:
    """The newcomer needs all blocks there are; the aborted one's step is still in flight."""
    params = SamplingParams(max_tokens=10, ignore_eos=True)
    prompt = [50 + i for i in range(10)]
    engine = harness(RecordingModel(), new_launcher, num_blocks=1 + 5)
    aborted = engine.submit([1 + i for i in range(10)], params)
    engine.step()
    newcomer = engine.enqueue(prompt, params)
    engine.abort(aborted)
    assert engine.outcomes[aborted].finish_reason is FinishReason.ABORT
    engine.run()
    assert engine.outcomes[newcomer].text == text_of(reference_completion(prompt, params))
    check_counters(engine)


def test_nobody_is_preempted_for_blocks_that_a_step_in_flight_gives_back(
    new_launcher: NewLauncher,
) -> None:
    """Blocks of 4: at the abort, both of the others need one more and the pool has none left."""
    params = SamplingParams(max_tokens=5, ignore_eos=True)
    engine = harness(RecordingModel(), new_launcher, num_blocks=1 + 6)
    prompts = [[10 * i + j for j in range(1, 8)] for i in range(3)]
    ids = engine.submit_together(prompts, params)
    engine.step()
    engine.abort(ids[0])
    engine.run()
    assert engine.stats.num_preemptions == 0
    for sequence_id, prompt in zip(ids[1:], prompts[1:], strict=True):
        assert engine.outcomes[sequence_id].text == text_of(reference_completion(prompt, params))
    check_counters(engine)


def test_numbers_that_are_not_finite_fail_their_request_alone(new_launcher: NewLauncher) -> None:
    engine = harness(RecordingModel(POISON), new_launcher)
    healthy = [1, 2, 3, 4, 5, 6, 7, 8, 9]
    params = SamplingParams(max_tokens=6, ignore_eos=True)
    bad, good = engine.submit_together([[POISON, *healthy], healthy], params)
    engine.run()
    assert engine.outcomes[bad].finish_reason is FinishReason.ERROR
    assert engine.outcomes[bad].usage == Usage(prompt_tokens=10)
    assert engine.outcomes[good].text == text_of(reference_completion(healthy, params))
    check_counters(engine)


class BrokenModel(HashModel):
    def execute(self, batch: FlatBatch) -> Tokens:
        raise RuntimeError("out of order")


def test_what_a_step_raises_comes_out_of_the_loop(new_launcher: NewLauncher) -> None:
    engine = harness(BrokenModel(BLOCK_SIZE), new_launcher)
    engine.enqueue([1, 2], SamplingParams(max_tokens=2))
    with pytest.raises(RuntimeError, match="out of order"):
        engine.run()
