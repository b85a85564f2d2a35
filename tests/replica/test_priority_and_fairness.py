"""Who is served first: priority with ageing, and tenants in equal shares."""

import random
from itertools import count

import pytest

from replica.engine.fair_share import ServedTokens
from replica.engine.messages import SamplingParams
from replica.engine.scheduler import SchedulerLimits
from tests.replica.engine_harness import STEP_S, EngineHarness
from tests.replica.hash_model import EOS, TOKEN_BYTES, VOCAB_SIZE, HashModel

AGING_S = 2.0
WINDOW_STEPS = round(10 / STEP_S)
FIRST_OF_BOTH = 51  # step at which the second tenant comes
SLACK_TOKENS = 12  # of some 500 tokens in a window


def harness(*, max_num_seqs: int = 2, num_blocks: int = 400) -> EngineHarness:
    limits = SchedulerLimits(
        4, max_num_seqs, 32, aging_s=AGING_S, fair_share_slack_tokens=SLACK_TOKENS
    )
    return EngineHarness(HashModel(4), TOKEN_BYTES, [EOS], limits, num_blocks)


def params(max_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, ignore_eos=True)


def finished_order(engine: EngineHarness, ids: list[int]) -> list[int]:
    order: list[int] = []
    while engine.step() is not None:
        order += [i for i in ids if engine.outcomes[i].finish_reason and i not in order]
    return order


def test_urgent_requests_go_first_and_equal_ones_by_arrival() -> None:
    engine = harness(max_num_seqs=1)
    running = engine.submit([1, 2], params(4), priority=-9)
    ids = [
        engine.submit([5 + i], params(2), priority=priority)
        for i, priority in enumerate((1, 0, 5, 0, -3))
    ]
    late, first, latest, second, urgent = ids
    assert finished_order(engine, [running, *ids]) == [running, urgent, first, second, late, latest]


def test_urgent_request_displaces_a_running_one_that_then_goes_on() -> None:
    engine = harness(max_num_seqs=1)
    batch = engine.submit([1, 2, 3, 4, 5], params(30), priority=2)
    engine.step()
    urgent = engine.submit([7], params(3), priority=0)
    assert engine.stats.num_preemptions == 1
    assert finished_order(engine, [batch, urgent]) == [urgent, batch]
    assert engine.outcomes[batch].num_tokens == 30


def test_batch_request_is_served_within_its_ageing_time_under_a_flood() -> None:
    engine = harness(max_num_seqs=2)
    batch = engine.submit([1, 2, 3], params(5), priority=1, cache_salt="batch")
    num_steps = next(
        n for n in count() if engine.outcomes[batch].num_tokens == 5 or flood(engine, n)
    )
    assert num_steps * STEP_S < 2 * AGING_S


def flood(engine: EngineHarness, seed: int) -> bool:
    """One urgent request a step, more than are ever served; never truthy."""
    engine.submit([1 + seed % 60], params(4), priority=0, cache_salt="flood")
    return False


def test_victims_are_of_the_lowest_priority_then_the_latest() -> None:
    engine = harness(max_num_seqs=3, num_blocks=1 + 12)
    ids = [
        engine.submit([1 + i] * 8, params(24), priority=priority)
        for i, priority in enumerate((1, 0, 0))
    ]
    batch, first, second = ids
    assert finished_order(engine, ids) == [first, second, batch]
    assert engine.stats.num_preemptions > 0


def test_nobody_gives_way_to_one_that_would_not_fit_even_then() -> None:
    """43 blocks: 24 at the end for two ahead of it, 25 for the giant, little for those behind."""
    engine = harness(max_num_seqs=8, num_blocks=44)
    ahead = [engine.submit([1, 2, 3, 4] * 10, params(8), cache_salt=f"ahead {i}") for i in (0, 1)]
    for index in range(4):
        engine.submit([5, 6] * 4, params(8), priority=2, cache_salt=f"behind {index}")
    giant = engine.submit([7, 8, 9, 4] * 25, params(4), priority=1, cache_salt="giant")
    while not any(engine.outcomes[i].finish_reason for i in ahead):
        assert engine.stats.num_preemptions == 0
        engine.step()
    engine.run()
    assert engine.outcomes[giant].num_tokens == 4


@pytest.mark.parametrize(
    ("shape_a", "shape_b"),
    [((4, 4), (4, 4)), ((4, 4), (40, 60)), ((60, 2), (2, 60)), ((4, 200), (4, 10))],
    ids=["equal", "small and large", "prompts and answers", "long runners"],
)
@pytest.mark.parametrize("max_num_seqs", [2, 8])
def test_two_backlogged_tenants_get_equal_shares_in_any_ten_seconds(
    shape_a: tuple[int, int], shape_b: tuple[int, int], max_num_seqs: int
) -> None:
    """B comes later and with fewer requests waiting; each has always more than can be served."""
    engine = harness(max_num_seqs=max_num_seqs, num_blocks=450)
    backlogs = [Backlog(engine, "a", 30, *shape_a), Backlog(engine, "b", 12, *shape_b)]
    history: list[tuple[int, int]] = []
    while len(history) < 4 * WINDOW_STEPS:
        for backlog in backlogs if len(history) >= FIRST_OF_BOTH else backlogs[:1]:
            backlog.refill()
        engine.step()
        history.append((backlogs[0].num_tokens(), backlogs[1].num_tokens()))
    for end in range(FIRST_OF_BOTH + WINDOW_STEPS, len(history)):
        (a, b), (earlier_a, earlier_b) = history[end], history[end - WINDOW_STEPS]
        shares = a - earlier_a, b - earlier_b
        assert max(shares) <= 1.2 * min(shares), shares


class Backlog:
    """One tenant that always has so many requests live."""

    def __init__(
        self, engine: EngineHarness, tenant: str, num_live: int, num_prompt: int, num_answer: int
    ) -> None:
        self._engine = engine
        self._tenant = tenant
        self._num_live = num_live
        self._num_prompt = num_prompt
        self._num_answer = num_answer
        self._rng = random.Random(tenant)
        self._live: list[int] = []
        self._num_finished_tokens = 0

    def refill(self) -> None:
        over = [i for i in self._live if self._engine.outcomes[i].finish_reason is not None]
        self._num_finished_tokens += sum(map(self._tokens, over))
        self._live = [i for i in self._live if i not in over]
        for _ in range(self._num_live - len(self._live)):
            prompt = [self._rng.randrange(1, VOCAB_SIZE) for _ in range(self._num_prompt)]
            self._live.append(self._engine.enqueue(prompt, params(self._num_answer), self._tenant))

    def num_tokens(self) -> int:
        """Prompt and completion tokens computed so far."""
        return self._num_finished_tokens + sum(map(self._tokens, self._live))

    def _tokens(self, sequence_id: int) -> int:
        usage = self._engine.usage_so_far(sequence_id)
        return usage.prompt_tokens + usage.completion_tokens


def test_lone_tenant_is_never_displaced_by_itself() -> None:
    engine = harness(max_num_seqs=2)
    for i in range(10):
        engine.submit([1 + i], params(40))
    engine.run()
    assert engine.stats.num_preemptions == 0


def test_fairness_costs_few_preemptions() -> None:
    """Each makes up for so many tokens of another tenant."""
    engine = harness(max_num_seqs=16, num_blocks=450)
    backlogs = [Backlog(engine, f"tenant {i}", 20, 8, 30) for i in range(5)]
    for _ in range(400):
        for backlog in backlogs:
            backlog.refill()
        engine.step()
    num_tokens = sum(backlog.num_tokens() for backlog in backlogs)
    assert engine.stats.num_preemptions < num_tokens / SLACK_TOKENS / 4


def test_idleness_is_not_saved_up() -> None:
    served = ServedTokens()
    served.enter("busy")
    served.add("busy", 1000)
    served.enter("new")
    assert served.of("new") == 1000
    served.add("new", 500)
    served.leave("new")
    served.enter("new")
    assert served.of("new") == 1500


def test_two_new_requests_with_one_prefix_compute_it_once() -> None:
    engine = harness(max_num_seqs=8)
    shared = [1 + i % 50 for i in range(100)]
    ids = engine.submit_together([[*shared, 51 + i] for i in range(4)], params(3))
    engine.run()
    usages = [engine.outcomes[i].usage for i in ids]
    assert [u.cached_prompt_tokens for u in usages if u] == [0, 100, 100, 100]
    assert engine.stats.num_preemptions == 0


def test_request_goes_on_alone_when_the_one_it_waited_for_is_aborted() -> None:
    engine = harness(max_num_seqs=8)
    shared = [1 + i % 50 for i in range(100)]
    first, second = engine.submit_together([[*shared, 51], [*shared, 52]], params(3))
    engine.step()
    engine.abort(first)
    engine.run()
    assert engine.outcomes[second].num_tokens == 3
    usage = engine.outcomes[second].usage
    assert usage is not None
    assert 0 < usage.cached_prompt_tokens < 100


def test_those_with_other_prefixes_do_not_wait() -> None:
    engine = harness(max_num_seqs=8)
    shared = [1 + i % 50 for i in range(20)]
    first, held, other = engine.submit_together([[*shared, 51], [*shared, 52], [9]], params(30))
    assert engine.outcomes[other].num_tokens > 0
    assert engine.outcomes[first].num_tokens == 1
    assert engine.outcomes[held].num_tokens == 0
