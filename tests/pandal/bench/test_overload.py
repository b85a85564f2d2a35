"""Whether a server kept up with an open loop, told of servers whose capacity is known."""

import heapq
import math
import random
from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from pandal.bench.answer import Outcome
from pandal.bench.html import report_page
from pandal.bench.overload import server_section
from pandal.bench.record import RequestRecord, RetryOutcome
from pandal.bench.table import server_line
from tests.pandal.bench.reports import record, report_of_records

SERVICE_S = 2.0  # mean


def answered(at_s: float, ttft_s: float, e2e_s: float) -> RequestRecord:
    return replace(record(0, ttft_s), intended_s=at_s, e2e_s=e2e_s)


def queued(
    rate_per_s: float,
    *,
    num_slots: int,
    duration_s: float = 60.0,
    seed: int = 1,
    timeout_s: float = math.inf,
) -> list[RequestRecord]:
    """First come, first served, in so many slots; answers of log-normal length; no user leaves."""
    rng = random.Random(seed)
    free_s = [0.0] * num_slots
    found, at_s = [], rng.expovariate(rate_per_s)
    while at_s < duration_s:
        begins_s = max(at_s, heapq.heappop(free_s))
        takes_s = SERVICE_S * rng.lognormvariate(-0.18, 0.6)
        heapq.heappush(free_s, begins_s + takes_s)
        one = answered(at_s, begins_s - at_s + 0.05, begins_s - at_s + takes_s)
        found.append(one if one.e2e_s <= timeout_s else timed_out(at_s, timeout_s))
        at_s += rng.expovariate(rate_per_s)
    return found


def timed_out(at_s: float, timeout_s: float) -> RequestRecord:
    late = answered(at_s, 0.0, timeout_s)
    return replace(late, outcome=Outcome.TIMEOUT, ttft_s=None, gaps_s=array("d"))


@pytest.mark.parametrize("usage", [0.1, 0.5, 0.8])
def test_a_server_with_room_has_kept_up(usage: float) -> None:
    verdicts = [
        server_section(queued(usage * 10, num_slots=20, seed=seed)).is_overloaded
        for seed in range(8)
    ]
    assert not any(verdicts)
    assert verdicts.count(False) >= (8 if usage > 0.1 else 5)


@pytest.mark.parametrize("usage", [1.3, 2.0, 5.0])
def test_a_server_that_is_offered_more_than_it_can_is_overloaded(usage: float) -> None:
    for seed in range(8):
        found = server_section(queued(usage * 10, num_slots=20, seed=seed))
        assert found.is_overloaded, found
        assert found.answered_requests_per_s == pytest.approx(10, rel=0.25)
        assert found.offered_requests_per_s == pytest.approx(usage * 10, rel=0.25)
        assert found.num_in_flight_at_end > found.num_in_flight_at_quarter  # type: ignore[operator]


def test_a_little_too_much_shows_in_a_long_run() -> None:
    assert server_section(queued(11.0, num_slots=20, duration_s=1_800.0)).is_overloaded
    assert server_section(queued(8.5, num_slots=20, duration_s=1_800.0)).is_overloaded is False


def test_users_who_do_not_wait_for_ever_hide_no_overload() -> None:
    """They bound what is in flight, and count as not answered."""
    found = server_section(queued(20.0, num_slots=20, duration_s=120.0, timeout_s=30.0))
    assert found.is_overloaded


def test_a_batch_that_takes_everyone_and_slows_down_is_overloaded_too() -> None:
    """No first token waits; answers take longer and longer."""
    records = [answered(n / 10, 0.05, 1.0 + 0.5 * n / 10) for n in range(600)]
    found = server_section(records)
    assert found.is_overloaded
    assert not any("first tokens" in reason for reason in found.reasons)


def test_answers_that_outlast_the_run_tell_nothing() -> None:
    """All are in flight at the end, of a server that has room for them."""
    found = server_section([answered(n / 10, 0.05, 100.0) for n in range(600)])
    assert found.is_overloaded is None
    assert "too short" in found.reasons[0]


@pytest.mark.parametrize("num", [0, 1, 12])
def test_few_requests_tell_nothing(num: int) -> None:
    found = server_section([answered(n / 10, 0.05, 1.0) for n in range(num)])
    assert found.is_overloaded is None
    assert "requests" in server_line(found)


def test_what_the_generator_held_back_is_not_the_servers() -> None:
    """It had four connections: all later requests waited for those, and none at the server."""
    records = queued(40.0, num_slots=4)
    assert server_section(records).is_overloaded
    assert server_section(records, until_s=0.2).is_overloaded is None


def test_a_reason_to_tell_nothing_is_told() -> None:
    found = server_section(queued(20.0, num_slots=20), untold="the run was interrupted")
    assert found.is_overloaded is None
    assert server_line(found).endswith("cannot be told: the run was interrupted")


def shed(status: int) -> Callable[[RequestRecord], RequestRecord]:
    return lambda one: replace(
        one, outcome=Outcome.REFUSED, status=status, retry=RetryOutcome.REFUSED_AGAIN, e2e_s=60.0
    )


@pytest.mark.parametrize(("status", "is_overloaded"), [(503, True), (429, False)])
def test_refusals_are_overload_only_where_the_server_says_so(
    status: int, is_overloaded: bool
) -> None:
    """429 is a tenant's limit: a request that waits for it is no backlog of the server's."""
    records = queued(8.0, num_slots=20)
    refused = [shed(status)(one) if n % 10 == 0 else one for n, one in enumerate(records)]
    assert server_section(refused).is_overloaded is is_overloaded


def verdicts(records: Sequence[RequestRecord]) -> tuple[str, str]:
    return server_line(server_section(records)), report_page(report_of_records(records))


def test_line_and_page_say_it_loudly() -> None:
    line, page = verdicts(queued(20.0, num_slots=20))
    assert line.startswith("THE SERVER IS OVERLOADED: ")
    assert "were offered and" in line
    assert "first tokens took" in line
    assert '<p class="warning">THE SERVER IS OVERLOADED' in page
    assert "Requests in flight" in page
    line, page = verdicts(queued(8.0, num_slots=20))
    assert line.startswith("The server kept up: ")
    assert 'class="warning"' not in page
