"""Turns: fair by tokens and weight, batch in slack, and nobody crowded out.  Time is virtual."""

import heapq
import math
import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.admission import ServiceClass
from contracts.names import TenantId, tenant_id
from gateway.admission.fair_queue import FairQueue, Turn
from gateway.admission.share import Share
from gateway.admission.virtual_counters import MAX_CREDIT_TOKENS

STANDARD, INTERACTIVE, BATCH = (
    ServiceClass.STANDARD,
    ServiceClass.INTERACTIVE,
    ServiceClass.BATCH,
)


def queue_of(max_waiting: int = 10_000, ageing_s: float = 30.0) -> FairQueue[str]:
    return FairQueue(max_waiting=max_waiting, ageing_s=ageing_s)


def turn(
    tenant: str,
    tokens: int = 100,
    *,
    weight: int = 1,
    service_class: ServiceClass = STANDARD,
    at_s: float = 0.0,
    deadline_s: float = 1e9,
) -> Turn[str]:
    share = Share(tenant_id(tenant), service_class, weight)
    return Turn(share, tokens, tokens, at_s, deadline_s, tenant)


def served(queue: FairQueue[str], num: int, now_s: float = 0.0) -> list[str]:
    turns = []
    for _ in range(num):
        first = queue.first(now_s)
        assert first is not None
        queue.take(first, now_s)
        turns.append(first.holder)
    return turns


def test_turns_are_shared_by_tokens_not_by_requests() -> None:
    queue = queue_of()
    for _ in range(40):
        queue.push(turn("long", 400))
        queue.push(turn("short", 100))
    assert Counter(served(queue, 25)) == {"long": 5, "short": 20}


def test_a_weight_is_a_share() -> None:
    queue = queue_of()
    for _ in range(40):
        queue.push(turn("heavy", weight=3))
        queue.push(turn("light"))
    assert Counter(served(queue, 40)) == {"heavy": 30, "light": 10}


def test_interactive_gets_more_turns_than_standard_but_not_all() -> None:
    queue = queue_of()
    for _ in range(50):
        queue.push(turn("chat", service_class=INTERACTIVE))
        queue.push(turn("rest"))
    assert Counter(served(queue, 50)) == {"chat": 40, "rest": 10}


def test_batch_waits_until_nobody_else_does() -> None:
    queue = queue_of()
    queue.push(turn("batch", 1, service_class=BATCH))
    for _ in range(3):
        queue.push(turn("rest", 1_000))
    assert served(queue, 4) == ["rest", "rest", "rest", "batch"]


def test_batch_that_waited_long_takes_turns() -> None:
    queue = queue_of(ageing_s=10.0)
    for _ in range(5):
        queue.push(turn("batch", service_class=BATCH))
        queue.push(turn("rest"))
    turns = served(queue, 6, now_s=10.0)
    assert Counter(turns) == {"batch": 3, "rest": 3}
    assert not any(queue.is_in_slack(p, 10.0) for p in queue)


def test_who_was_away_has_credit_for_a_burst_and_no_more() -> None:
    queue, tokens = queue_of(), int(MAX_CREDIT_TOKENS / 4)
    for _ in range(40):
        queue.push(turn("busy", tokens))
    served(queue, 20)
    for _ in range(20):
        queue.push(turn("new", tokens))
    turns = served(queue, 24)
    assert turns[:4] == ["new"] * 4
    assert Counter(turns[4:]) == {"new": 10, "busy": 10}


@pytest.mark.parametrize("past", ["directly", "in turn, alone", "beside batch", "elsewhere"])
def test_what_a_tenant_had_while_nobody_else_waited_is_not_held_against_it(past: str) -> None:
    queue, old = queue_of(), turn("old", 1_000)
    if past == "beside batch":
        queue.push(turn("batch", service_class=BATCH))
    for _ in range(1_000):
        if past == "directly":
            queue.charge(old.share, 1_000, 0.0)
        elif past == "elsewhere":
            queue.served_elsewhere(old.share, 1_000)
        else:
            queue.push(turn("old", 1_000))
            served(queue, 1)
    for _ in range(400):
        queue.push(turn("new"))
        queue.push(turn("old"))
    turns = served(queue, 400)
    credit = int(MAX_CREDIT_TOKENS / 100) + 11  # and what old's last thousand tokens come to
    assert Counter(turns[credit:])["old"] == pytest.approx((400 - credit) / 2, abs=1)


def test_many_tokens_at_a_time_get_no_more_than_their_share() -> None:
    """Its request is over before it asks again, so it comes back each time."""
    queue, large, small = queue_of(), 100_000, 0
    for _ in range(1_000):
        queue.push(turn("small", 1_000))
    for _ in range(5):
        queue.push(turn("large", large))
        while served(queue, 1) == ["small"]:
            small += 1_000
    assert small >= 4 * large - MAX_CREDIT_TOKENS


def test_a_debt_is_not_for_ever() -> None:
    """A neighbour waited here while the tenant had a million tokens from other gateways."""
    queue = queue_of()
    for _ in range(4_000):
        queue.push(turn("here"))
    queue.served_elsewhere(turn("debtor").share, 1_000_000)
    for _ in range(10):
        queue.push(turn("debtor"))
    turns = served(queue, 1_500)
    assert 1_300 < turns.index("debtor") < 1_320


def test_batch_that_had_the_nights_tokens_still_takes_turns_when_it_waited_long() -> None:
    queue = queue_of(ageing_s=10.0)
    for _ in range(1_000):
        queue.push(turn("batch", 1_000, service_class=BATCH))
        served(queue, 1)
    for _ in range(400):
        queue.push(turn("rest"))
        queue.push(turn("batch", service_class=BATCH))
    assert Counter(served(queue, 400, now_s=10.0))["batch"] > 100


def test_service_elsewhere_counts() -> None:
    queue = queue_of()
    for _ in range(10):
        queue.push(turn("here"))
        queue.push(turn("elsewhere"))
    queue.served_elsewhere(turn("elsewhere").share, 500)
    assert served(queue, 5) == ["here"] * 5


def test_a_full_queue_takes_from_whoever_has_most_in_it() -> None:
    queue = queue_of(max_waiting=4)
    flood = [turn("flood") for _ in range(5)]
    assert [queue.push(p) for p in flood] == [None, None, None, None, flood[4]]
    assert queue.push(turn("quiet")) is flood[3]
    assert queue.push(turn("other")) is flood[2]
    newest = turn("quiet")
    assert queue.push(newest) is newest, "who has as many as the longest makes nobody leave"
    assert len(queue) == 4


def test_who_leaves_frees_its_place() -> None:
    queue = queue_of()
    gone = turn("a")
    queue.push(gone)
    assert queue.remove(gone)
    assert not queue.remove(gone)
    assert (len(queue), queue.prompt_tokens, queue.first(0.0)) == (0, 0, None)


def test_who_is_overdue_is_named() -> None:
    queue = queue_of()
    late, early = turn("a", deadline_s=5.0), turn("b", deadline_s=9.0)
    queue.push(late)
    queue.push(early)
    assert queue.overdue(5.0) == [late]


tenants = st.sampled_from(["a", "b", "c"])


@given(
    st.lists(st.tuples(tenants, st.integers(1, 500), st.sampled_from(ServiceClass), st.booleans()))
)
def test_whatever_comes_and_goes_the_counts_hold(
    steps: list[tuple[str, int, ServiceClass, bool]],
) -> None:
    queue, inside = queue_of(max_waiting=6), []
    for tenant, tokens, service_class, is_taken in steps:
        entering = turn(tenant, tokens, service_class=service_class)
        loser = queue.push(entering)
        inside = [p for p in (*inside, entering) if p is not loser]
        if is_taken and (first := queue.first(0.0)) is not None:
            queue.take(first, 0.0)
            inside.remove(first)
        assert set(queue) == set(inside)
        assert queue.prompt_tokens == sum(p.prompt_tokens for p in inside)
        assert len(queue) <= 6


# A noisy neighbour, on a fleet that prefills so many tokens a second

NUM_REPLICAS = 8
TOKENS_PER_S = 1_000.0
NUM_QUIET = 8
SECONDS = 400.0


@dataclass
class Fleet:
    """Replicas that prefill one prompt after the other, each taking the next when it is free."""

    queue: FairQueue[int]
    busy_until: list[float] = field(default_factory=list)
    ttfts: Mapping[TenantId, list[float]] = field(default_factory=lambda: defaultdict(list))

    def run(self, arrivals: Sequence[tuple[float, Turn[int]]]) -> None:
        for at_s, arriving in arrivals:
            self._serve_until(at_s)
            self.queue.push(arriving)
            self._serve(at_s)
        self._serve_until(math.inf)

    def _serve_until(self, now_s: float) -> None:
        while self.busy_until and self.busy_until[0] <= now_s:
            self._serve(heapq.heappop(self.busy_until))

    def _serve(self, now_s: float) -> None:
        while len(self.busy_until) < NUM_REPLICAS:
            first = self.queue.first(now_s)
            if first is None:
                return
            self.queue.take(first, now_s)
            ends_s = now_s + first.num_tokens / TOKENS_PER_S
            heapq.heappush(self.busy_until, ends_s)
            self.ttfts[first.share.tenant].append(ends_s - first.entered_s)


def traffic(name: str, per_s: float, seed: int) -> Iterator[tuple[float, Turn[int]]]:
    source, at_s = random.Random(seed), 0.0
    share = Share(tenant_id(name), STANDARD, 1)
    while (at_s := at_s + source.expovariate(per_s)) < SECONDS:
        tokens = source.randrange(200, 1_800)
        yield at_s, Turn(share, tokens, tokens, at_s, math.inf, 0)


def p95_of_the_quiet(noisy_factor: float) -> float:
    """Eight quiet tenants keep three fifths of the fleet busy; the noisy one comes on top."""
    per_s = 0.6 * NUM_REPLICAS / NUM_QUIET  # of prompts that take a second each
    arrivals = [a for n in range(NUM_QUIET) for a in traffic(f"quiet-{n}", per_s, n)]
    arrivals += traffic("noisy", per_s * noisy_factor, 99)
    fleet = Fleet(FairQueue(max_waiting=200, ageing_s=30.0))
    fleet.run(sorted(arrivals, key=lambda arrival: arrival[0]))
    quiet = [tenant_id(f"quiet-{n}") for n in range(NUM_QUIET)]  # one alone asks too seldom
    ttfts = sorted(ttft for tenant in quiet for ttft in fleet.ttfts[tenant])
    return ttfts[math.ceil(0.95 * len(ttfts)) - 1]


def test_a_tenant_with_a_hundred_times_the_traffic_hardly_delays_another() -> None:
    usual, crowded = p95_of_the_quiet(1.0), p95_of_the_quiet(100.0)
    assert crowded < 1.2 * usual
