"""When requests are meant to be sent: schedules as pure functions of a seed."""

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pandal.bench.arrivals import ArrivalProcess, Bursts, Constant, Poisson, Replay, until

seeds = st.integers(0, 10_000)
PROCESSES: list[ArrivalProcess] = [Poisson(50.0), Constant(50.0), Bursts(50.0, 5)]


def offsets(process: ArrivalProcess, seed: int, num: int) -> list[float]:
    return until(process, random.Random(seed), num_arrivals=num)


@pytest.mark.parametrize("process", PROCESSES, ids=lambda p: type(p).__name__)
@given(seed=seeds)
def test_offsets_ascend_from_zero_and_follow_the_seed(process: ArrivalProcess, seed: int) -> None:
    found = offsets(process, seed, 40)
    assert found == sorted(found)
    assert found[0] >= 0
    assert found == offsets(process, seed, 40)


@pytest.mark.parametrize("process", PROCESSES, ids=lambda p: type(p).__name__)
def test_the_mean_rate_is_the_one_asked_for(process: ArrivalProcess) -> None:
    found = offsets(process, 7, 20_000)
    assert 20_000 / found[-1] == pytest.approx(50.0, rel=0.05)


def test_poisson_gaps_vary_as_much_as_their_mean() -> None:
    found = offsets(Poisson(10.0), 3, 20_000)
    gaps = [b - a for a, b in itertools.pairwise(found)]
    mean = sum(gaps) / len(gaps)
    variance = sum((gap - mean) ** 2 for gap in gaps) / len(gaps)
    assert variance**0.5 / mean == pytest.approx(1.0, rel=0.05)


def test_constant_arrivals_do_not_drift() -> None:
    assert offsets(Constant(3.0), 0, 3_001)[-1] == 1_000.0


def test_a_burst_is_one_moment() -> None:
    found = offsets(Bursts(10.0, 4), 1, 40)
    assert all(len(set(found[i : i + 4])) == 1 for i in range(0, 40, 4))
    assert len(set(found)) == 10


def test_a_replay_begins_at_once_and_keeps_its_gaps() -> None:
    assert offsets(Replay((100.0, 101.0, 104.0), speed=2.0), 0, 10) == [0.0, 0.5, 2.0]


def test_the_duration_ends_a_schedule() -> None:
    assert until(Constant(2.0), random.Random(0), duration_s=2.0) == [0.0, 0.5, 1.0, 1.5]
