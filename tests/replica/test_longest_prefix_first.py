"""Among equals, who finds most of its prompt cached goes first; nobody waits for ever for it."""

from replica.engine.fair_share import ServedTokens
from replica.engine.messages import SamplingParams
from replica.engine.prefix import PrefixIdentity
from replica.engine.scheduler import SchedulerLimits
from replica.engine.sequence import Prompt, Sequence, Standing
from replica.engine.waiting_queue import Ranking, WaitingQueue
from tests.replica.engine_harness import STEP_S, EngineHarness
from tests.replica.hash_model import EOS, TOKEN_BYTES, HashModel

WINDOW_S = 40 * STEP_S
PARAMS = SamplingParams(max_tokens=6, ignore_eos=True)


def prompt(group: int, own: int) -> list[int]:
    return [1 + (group + i) % 50 for i in range(40)] + [1 + own % 60, 2, 3]


def engine_of(prefix_window_s: float) -> EngineHarness:
    """One request at a time, and room for one group's prefix only."""
    limits = SchedulerLimits(4, 1, 64, prefix_window_s=prefix_window_s)
    return EngineHarness(HashModel(4), TOKEN_BYTES, [EOS], limits, num_blocks=16)


def hit_ratio(prefix_window_s: float) -> float:
    """Two groups, each with its own prefix, arriving in turns."""
    engine = engine_of(prefix_window_s)
    for index in range(40):
        engine.submit(prompt(10 * (index % 2), index), PARAMS)
    engine.run()
    return engine.stats.prefix_cache_hits / engine.stats.prefix_cache_queries


def test_more_tokens_are_found_in_the_cache_than_in_order_of_arrival() -> None:
    assert hit_ratio(0.0) < 0.3
    assert hit_ratio(WINDOW_S) > 0.7


def test_nobody_is_overtaken_by_who_came_more_than_the_window_later() -> None:
    engine = engine_of(WINDOW_S)
    flood = {engine.submit(prompt(0, i), PARAMS): engine.now_s for i in range(5)}
    lone = engine.submit(prompt(10, 0), PARAMS)
    lone_at_s = engine.now_s
    overtakers = []
    while engine.outcomes[lone].usage is None:
        flood[engine.submit(prompt(0, len(flood)), PARAMS)] = engine.now_s
        overtakers = [i for i in flood if engine.outcomes[i].usage is not None]
    assert max(flood[i] for i in overtakers) <= lone_at_s + WINDOW_S
    assert len([i for i in overtakers if i > lone]) > 2, "the flood was cached"


def test_who_had_to_give_way_is_not_overtaken() -> None:
    engine = engine_of(WINDOW_S)
    first = engine.submit(prompt(10, 0), SamplingParams(max_tokens=12, ignore_eos=True))
    engine.submit(prompt(0, 1), PARAMS, cache_salt="other")  # takes the place, and the cache
    engine.preempt(first)
    engine.clear_cache()
    later = engine.submit(prompt(0, 2), PARAMS)
    while engine.outcomes[first].usage is None:
        assert engine.outcomes[later].num_tokens == 0
        engine.step()
    engine.run()


def waiting(arrival: int) -> Sequence:
    return Sequence(
        sequence_id=arrival,
        standing=Standing(arrival, "tenant", priority=0, submitted_at_s=0.0),
        prompt=Prompt([arrival]),
        params=PARAMS,
        root=PrefixIdentity("test", "float32").root("tenant"),
    )


def test_who_had_to_give_way_is_not_overtaken_behind_a_newcomer_either() -> None:
    newcomer, preempted, cached = (waiting(arrival) for arrival in (1, 2, 3))
    preempted.has_run = True
    queue = WaitingQueue(Ranking(30.0), WINDOW_S)
    for sequence in (newcomer, preempted, cached):
        queue.add(sequence)
    served = ServedTokens()
    served.enter("tenant")

    def in_order() -> list[Sequence]:
        return list(queue.in_order(1.0, served, lambda sequence: int(sequence is cached)))

    assert in_order() == [newcomer, preempted, cached]
    queue.remove(preempted)
    assert in_order() == [cached, newcomer]


def test_a_better_priority_goes_before_a_longer_prefix() -> None:
    engine = engine_of(WINDOW_S)
    engine.submit(prompt(0, 0), PARAMS)
    cached = engine.submit(prompt(0, 1), PARAMS, priority=1)
    urgent = engine.submit(prompt(10, 2), PARAMS, priority=0)
    while engine.outcomes[urgent].usage is None:
        assert engine.outcomes[cached].num_tokens == 0
        engine.step()
    engine.run()
