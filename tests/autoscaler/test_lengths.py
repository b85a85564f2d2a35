"""How much work a request is: known from what was done, and soon when it changes."""

import random
from collections import deque

import pytest

from autoscaler.lengths import Lengths, next_lengths
from autoscaler.pool import Demand

LOOK_S = 10.0
UNKNOWN = Lengths()


def after(looks: list[tuple[float, float]], known: Lengths = UNKNOWN) -> Lengths:
    for work_tokens, num_done in looks:
        known = next_lengths(known, Demand(LOOK_S, 0.0, 0, work_tokens, num_done))
    return known


def test_it_is_a_mean_of_work_over_requests_and_not_of_looks() -> None:
    assert after([(9_000.0, 10.0), (1_000.0, 90.0)]).mean_tokens == pytest.approx(100.0, rel=0.05)


def test_nothing_is_known_before_a_request_has_begun() -> None:
    assert after([]).mean_tokens is None
    assert after([(700.0, 0.0)]).mean_tokens is None


def test_what_is_known_outlives_a_night_without_requests() -> None:
    known = after([(4_000.0, 40.0)] * 5)
    assert after([(0.0, 0.0)] * 100_000, known) == known


def test_chance_alone_is_no_change() -> None:
    rng = random.Random(1)
    known, means = Lengths(), []
    for _ in range(1_000):
        drawn = [rng.expovariate(1 / 100) for _ in range(40)]
        known = after([(sum(drawn), 40.0)], known)
        means.append(known.mean_tokens)
    assert all(mean == pytest.approx(100.0, rel=0.12) for mean in means[50:])


@pytest.mark.parametrize("changed", [250.0, 25.0], ids=["longer", "shorter"])
def test_a_change_is_known_in_half_a_minute_and_nothing_of_before_is_in_it(changed: float) -> None:
    known = after([(4_000.0, 40.0)] * 100)
    looks = [(40.0 * changed, 40.0)]
    for num_looks in range(3, 12):
        assert after(looks * num_looks, known).mean_tokens == pytest.approx(changed, rel=0.001)


def test_a_change_within_the_half_minute_is_told_from_what_was_before_it() -> None:
    known = after([(4_000.0, 40.0)] * 100)
    mean = after([(10_000.0, 40.0)] * 2, known).mean_tokens
    assert mean == pytest.approx(200.0, rel=0.001), "two looks of the new, and one of the old"


def test_one_odd_look_is_no_change() -> None:
    """It is in the long memory, which forgets nothing for it."""
    known = after([(10_000.0, 10.0)] * 100)
    odd = after([(60_000.0, 10.0)], known)
    for num_looks in range(12):
        later = after([(10_000.0, 10.0)] * num_looks, odd)
        assert later.mean_tokens == pytest.approx(1_000.0, rel=0.2)


@pytest.mark.parametrize(("num_looks", "expected"), [(3, 1_350.0), (6, 1_970.0)])
def test_what_was_known_is_known_again_where_a_change_ends_within_a_minute(
    num_looks: int, expected: float
) -> None:
    known = after([(20_000.0, 20.0)] * 100)
    changed = after([(200_000.0, 100.0)] * num_looks, known)
    assert changed.mean_tokens == pytest.approx(2_000.0, rel=0.001)
    mean = after([(20_000.0, 20.0)], changed).mean_tokens
    assert mean == pytest.approx(expected, rel=0.02)


def test_answers_that_grow_are_seen_as_they_grow() -> None:
    """Two a second; each runs 20 s at 10 tokens a second, and from look 56 on 50 s."""
    ends: deque[float] = deque()
    known, running = Lengths(), 0
    for look in range(62):
        begin_s, length_s = look * LOOK_S, 20.0 if look < 56 else 50.0
        arrived = [begin_s + i / 2 for i in range(20)]
        ends.extend(at_s + length_s for at_s in arrived)
        now_s = begin_s + LOOK_S
        num_ended = sum(end_s <= now_s for end_s in ends)
        still = deque(end_s for end_s in ends if end_s > now_s)
        work = 10.0 * LOOK_S * (running + len(still)) / 2
        known = after([(work, num_ended + (len(still) - running) / 2)], known)
        ends, running = still, len(still)
        if look == 55:
            assert known.mean_tokens == pytest.approx(200.0, rel=0.05)
    assert known.mean_tokens == pytest.approx(500.0, rel=0.3)


@pytest.mark.parametrize(("per_s", "mean_s"), [(0.05, 100.0), (0.02, 300.0)])
def test_long_answers_count_where_few_run(per_s: float, mean_s: float) -> None:
    """In most looks nothing begins or ends, and the middle of an answer is most of it."""
    rng, known = random.Random(1), UNKNOWN
    spans, means = _exponential_spans(rng, per_s, mean_s, until_s=10_000.0), []
    for look in range(1_000):
        begin_s, end_s = look * LOOK_S, (look + 1) * LOOK_S
        parts = [(max(b, begin_s), min(e, end_s)) for b, e in spans]
        num_begun = sum(begin_s <= b < end_s for b, _ in spans)
        num_ended = sum(begin_s <= e < end_s for _, e in spans)
        work = 30.0 * sum(max(0.0, end - begin) for begin, end in parts)
        known = after([(work, (num_begun + num_ended) / 2)], known)
        if look >= 200:
            assert known.mean_tokens is not None
            means.append(known.mean_tokens)
    assert sum(means) / len(means) == pytest.approx(30.0 * mean_s, rel=0.2)


def _exponential_spans(
    rng: random.Random, per_s: float, mean_s: float, until_s: float
) -> list[tuple[float, float]]:
    spans, now_s = [], rng.expovariate(per_s)
    while now_s < until_s:
        spans.append((now_s, now_s + rng.expovariate(1 / mean_s)))
        now_s += rng.expovariate(per_s)
    return spans


def test_one_that_runs_for_hours_is_not_longer_than_what_is_remembered_of_it() -> None:
    """Its beginning is forgotten; what it has done must not be divided by almost nothing."""
    begun = after([(300.0, 0.5)])
    mean = after([(300.0, 0.0)] * 10_000, begun).mean_tokens
    assert mean is not None
    assert mean < 2.2 * 30.0 * 300.0


def test_a_preemption_takes_back_what_its_beginning_counted() -> None:
    known = after([(4_000.0, 40.0)] * 100)
    mean = after([(4_000.0, 20.0), (4_000.0, 60.0)], known).mean_tokens
    assert mean == pytest.approx(100.0, rel=0.02)
