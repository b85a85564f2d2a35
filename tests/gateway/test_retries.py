"""Retries stay a share of the traffic, and a replica that fails is left alone for a while."""

import pytest

from gateway.admission.quota_plan import PlanBook
from gateway.errors import NoReplicaAvailable
from gateway.resilience.breaker import Breakers
from gateway.resilience.failures import is_replicas_failure, is_retriable
from gateway.resilience.fallback import Fallbacks
from gateway.resilience.hedging import Hedging
from gateway.resilience.retries import Retries, RetryLimits
from gateway.resilience.retry_budget import RetryBudget
from gateway.resilience.waits import Waits


class Seconds:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def retries(
    breakers: Breakers | None = None,
    *,
    random: float = 1.0,
    ratio: float = 0.2,
    longest_wait_s: float = 10.0,
) -> Retries:
    limits = RetryLimits(max_retries=2, longest_wait_s=longest_wait_s, request_timeout_s=60.0)
    fallbacks = Fallbacks(PlanBook(), {})
    hedging = Hedging(RetryBudget(ratio))
    breakers = breakers or Breakers(Seconds())
    return Retries(limits, RetryBudget(ratio), breakers, lambda: random, fallbacks, hedging)


@pytest.mark.parametrize("status", [204, 301, 408, 409, 429, 500, 502, 503, 504, 529])
def test_what_may_pass_is_tried_again(status: int) -> None:
    assert is_retriable(status)


@pytest.mark.parametrize("status", [200, 400, 401, 403, 404, 413, 422, 460])
def test_what_stays_wrong_is_not(status: int) -> None:
    assert not is_retriable(status)
    assert not is_replicas_failure(status)


def test_retries_are_a_share_of_the_requests() -> None:
    budget = RetryBudget(0.1)
    assert sum(budget.withdraw() for _ in range(100)) == 10, "a few at once"
    num_retries = 0
    for _ in range(1_000):
        budget.deposit()
        num_retries += budget.withdraw()
    assert 98 <= num_retries <= 100


def test_a_budget_of_nothing_allows_nothing() -> None:
    budget = RetryBudget(0.0)
    budget.deposit()
    assert not budget.withdraw()


def test_pauses_double_and_are_drawn_from_all_of_their_range() -> None:
    def pauses(random: float) -> list[float | None]:
        drawn = retries(random=random)
        return [
            drawn.pause_s(number, 60.0, retry_after_s=None, is_elsewhere=True)
            for number in range(3)
        ]

    assert pauses(1.0) == [0.05, 0.1, None]
    assert pauses(0.5) == [0.025, 0.05, None]
    assert pauses(0.0) == [0.0, 0.0, None]


@pytest.mark.parametrize(
    ("asked", "is_elsewhere", "expected"),
    [(3, False, 3.0), (3, True, 0.0), (11, False, None), (11, True, 0.0), (0, False, 0.0)],
)
def test_a_replica_that_says_when_is_asked_then(
    asked: int, is_elsewhere: bool, expected: float | None
) -> None:
    drawn = retries(random=0.0)
    assert drawn.pause_s(0, 60.0, retry_after_s=asked, is_elsewhere=is_elsewhere) == expected


def test_nobody_waits_past_the_end_of_his_time() -> None:
    assert retries().pause_s(0, 2.9, retry_after_s=3, is_elsewhere=False) is None
    assert retries().pause_s(0, 0.01, retry_after_s=None, is_elsewhere=True) is None


def test_a_refused_retry_costs_no_budget() -> None:
    drawn = retries(ratio=0.2)
    for _ in range(20):
        drawn.pause_s(2, 60.0, retry_after_s=None, is_elsewhere=True)
        drawn.pause_s(0, 0.0, retry_after_s=None, is_elsewhere=True)
    assert sum(drawn.budget.withdraw() for _ in range(20)) == 10


def broken(seconds: Seconds, num_failures: int = 5) -> Breakers:
    breakers = Breakers(seconds)
    for _ in range(num_failures):
        breakers.failed("m", "a", None)
    return breakers


def test_five_failures_in_a_row_open_it() -> None:
    assert broken(Seconds(), 4).state("m", "a") == "closed"
    breakers = broken(Seconds())
    assert breakers.state("m", "a") == "open"
    assert breakers.barred("m") == {"a"}


def test_it_is_the_replicas_for_one_model() -> None:
    breakers = broken(Seconds())
    assert breakers.barred("other") == set()
    assert breakers.state("m", "b") == "closed"


def test_an_answer_in_between_begins_the_row_anew() -> None:
    breakers = broken(Seconds(), 4)
    breakers.succeeded("m", "a", None)
    assert not breakers.failing
    breakers.failed("m", "a", None)
    assert breakers.state("m", "a") == "closed"


def test_one_request_finds_out() -> None:
    seconds = Seconds()
    breakers = broken(seconds)
    seconds.now_s += 1.0
    assert (breakers.state("m", "a"), breakers.barred("m")) == ("half_open", set())
    probe = breakers.begin("m", "a")
    assert (breakers.state("m", "a"), breakers.barred("m")) == ("half_open", {"a"})
    breakers.succeeded("m", "a", probe)
    assert not breakers.failing


def test_a_probe_that_fails_makes_the_pause_longer() -> None:
    seconds = Seconds()
    breakers = broken(seconds)
    seconds.now_s += 1.0
    breakers.failed("m", "a", breakers.begin("m", "a"))
    seconds.now_s += 1.9
    assert breakers.state("m", "a") == "open"
    seconds.now_s += 0.1
    assert breakers.state("m", "a") == "half_open"


def test_what_had_begun_before_makes_no_pause_longer() -> None:
    seconds = Seconds()
    breakers = broken(seconds, 50)
    seconds.now_s += 1.0
    assert breakers.state("m", "a") == "half_open"


def test_a_probe_whose_client_left_leaves_it_to_the_next() -> None:
    seconds = Seconds()
    breakers = broken(seconds)
    seconds.now_s += 1.0
    breakers.undecided("m", "a", breakers.begin("m", "a"))
    assert breakers.barred("m") == set()


@pytest.mark.parametrize("end", ["succeeded", "failed", "undecided", "began"])
def test_the_probes_end_alone_decides(end: str) -> None:
    seconds = Seconds()
    breakers = broken(seconds)
    getattr(breakers, end)("m", "a", None)
    assert breakers.state("m", "a") == "open", "an older request tells nothing new"
    seconds.now_s += 1.0
    probe = breakers.begin("m", "a")
    assert breakers.begin("m", "a") is None, "one"
    getattr(breakers, end)("m", "a", None)
    assert breakers.barred("m") == {"a"}, "the probe is under way"
    breakers.succeeded("m", "a", probe)
    assert not breakers.failing


def test_the_probe_of_an_earlier_opening_decides_nothing() -> None:
    seconds = Seconds()
    breakers = broken(seconds)
    seconds.now_s += 1.0
    old = breakers.begin("m", "a")
    breakers.undecided("m", "a", old)
    new = breakers.begin("m", "a")
    breakers.succeeded("m", "a", old)
    assert breakers.barred("m") == {"a"}
    breakers.succeeded("m", "a", new)
    assert not breakers.failing


def test_who_failed_and_went_is_forgotten() -> None:
    seconds = Seconds()
    breakers = Breakers(seconds)
    for number in range(100):
        breakers.failed("m", f"pod-{number}", None)
    seconds.now_s += 601.0
    breakers.failed("m", "pod-100", None)
    assert breakers.barred("m") == set()
    assert len(breakers.failing) == 1


@pytest.mark.parametrize("told", [False, True], ids=["failed", "told"])
def test_a_refusal_that_may_be_of_its_prompt_is_no_probes_end(told: bool) -> None:
    seconds = Seconds()
    breakers = Breakers(seconds) if told else broken(seconds)
    if told:
        breakers.turned_away("m", "a", None, 429, 30.0)
    seconds.now_s += 30.0
    breakers.refused("m", "a", breakers.begin("m", "a"), 403)
    assert breakers.barred("m") == set(), "the next one is the probe"
    breakers.succeeded("m", "a", breakers.begin("m", "a"))
    assert not breakers.failing


def test_a_row_of_refusals_opens_it_and_ends_where_another_answer_begins() -> None:
    breakers = Breakers(Seconds())
    for _ in range(9):
        breakers.refused("m", "a", None, 403)
        breakers.began("m", "a", None)
    for _ in range(4):
        breakers.refused("m", "a", None, 404)
    assert breakers.state("m", "a") == "closed"
    breakers.refused("m", "a", None, 404)
    assert breakers.state("m", "a") == "open"


def test_refusals_of_everything_that_is_asked_make_the_pause_longer() -> None:
    """And who had told to be left alone is then one that fails: better than nobody."""
    seconds = Seconds()
    breakers = Breakers(seconds)
    breakers.turned_away("m", "a", None, 429, 30.0)
    for pause_s in (30.0, 2.0, 5.0):
        assert breakers.left_alone_ms("m", {"a"}) == 1_000 * pause_s
        seconds.now_s += pause_s
        for _ in range(5):
            breakers.refused("m", "a", breakers.begin("m", "a"), 403)
    assert breakers.told("m") == set()


def test_who_told_to_be_left_alone_and_then_fails_is_one_that_fails() -> None:
    seconds = Seconds()
    breakers = Breakers(seconds)
    breakers.turned_away("m", "a", None, 429, 30.0)
    seconds.now_s += 30.0
    breakers.failed("m", "a", breakers.begin("m", "a"), 500)
    assert (breakers.barred("m"), breakers.told("m")) == ({"a"}, set())


def test_who_is_left_alone_is_told_to_clients_and_waited_for_by_nobody() -> None:
    shared = retries(random=0.0)
    shared.breakers.turned_away("m", "theirs", None, 503)
    waits, error = Waits(shared, Seconds(), 100.0), NoReplicaAvailable("none")
    waits.tell(error, "m", {"theirs"}, {"theirs"})
    assert error.retry_after_ms == 1_000
    assert waits.before_all_s() == 0.0


def test_what_one_of_ours_asked_for_is_waited_for_once() -> None:
    waits, error = Waits(retries(random=0.0), Seconds(), 100.0), NoReplicaAvailable("none")
    for asked_ms in (3_000, 2_000, 4_000):
        waits.note_asked(asked_ms)
    waits.tell(error, "m", {"ours"}, ())
    assert error.retry_after_ms == 2_000
    assert [waits.before_all_s() for _ in range(3)] == [2.0, 0.0, None], "two retries"
