"""From records to figures, by hand."""

import math
from array import array
from dataclasses import replace
from decimal import Decimal

import pytest

from pandal.bench.answer import Outcome, PromptDetails, Usage
from pandal.bench.health import Health
from pandal.bench.options import Prices
from pandal.bench.record import RequestRecord, RetryOutcome
from pandal.bench.summary import (
    generator_section,
    measured,
    quantiles,
    request_columns,
    tenant_sections,
    total_section,
)
from pandal.bench.tenants import Slo, Tenant

SLO = Slo(ttft_s=1.0, tpot_s=0.1)
ACME, GLOBEX = Tenant("acme", SLO, 1.0), Tenant("globex", Slo(ttft_s=0.1, tpot_s=0.1), 1.0)
GOOD = RequestRecord(
    tenant="acme",
    session=0,
    turn=0,
    intended_s=0.0,
    send_lag_s=0.0,
    outcome=Outcome.COMPLETED,
    status=200,
    retry=None,
    retry_after_s=None,
    ttft_s=0.5,
    tpot_s=0.05,
    e2e_s=2.0,
    usage=Usage(100, 31, PromptDetails(40)),
    num_chunks=31,
    gaps_s=array("d", [0.05] * 30),
    num_dropped_turns=0,
)
REFUSED = replace(
    GOOD,
    outcome=Outcome.REFUSED,
    status=429,
    retry=RetryOutcome.REFUSED_AGAIN,
    retry_after_s=3.0,
    ttft_s=None,
    tpot_s=None,
    usage=None,
    num_chunks=0,
    gaps_s=array("d"),
)
QUIET = Health(cpu_ratio=0.1, busiest_cpu_ratio=0.2, loop_lags_s=[0.001])


def test_quantiles_interpolate() -> None:
    found = quantiles([float(n) for n in range(101)])
    assert found is not None
    assert (found.p50, found.p90, found.p95, found.p99, found.max) == (50, 90, 95, 99, 100)
    assert quantiles([]) is None


def test_throughput_is_over_the_whole_run() -> None:
    records = [replace(GOOD, intended_s=float(n)) for n in range(9)]  # the last ends at 10 s
    flow = total_section(records, [ACME], None).throughput
    assert flow.duration_s == 10.0
    assert flow.requests_per_s == pytest.approx(0.9)
    assert flow.output_tokens_per_s == pytest.approx(27.9)
    assert flow.offered_requests_per_s == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("change", "is_good"),
    [
        ({}, True),
        ({"ttft_s": 1.0}, True),
        ({"ttft_s": 1.01}, False),
        ({"tpot_s": 0.11}, False),
        ({"tpot_s": None}, True),  # an answer of one token
        ({"outcome": Outcome.BROKEN}, False),
    ],
)
def test_a_good_request_meets_both_promises(change: dict[str, object], is_good: bool) -> None:
    assert replace(GOOD, **change).is_good(SLO) is is_good


def test_goodput_counts_failures_against_it() -> None:
    section = total_section([GOOD, replace(GOOD, ttft_s=5.0), REFUSED, REFUSED], [ACME], None)
    assert (section.goodput.num_good, section.goodput.good_ratio) == (1, 0.25)
    assert section.outcomes == {"completed": 2, "refused": 2}
    assert section.statuses == {"200": 2, "429": 2}


def test_turns_that_a_failure_kept_from_being_sent_are_not_good() -> None:
    gave_up = replace(REFUSED, num_dropped_turns=2)
    section = total_section([GOOD, gave_up], [ACME], None)
    assert (section.num_requests, section.goodput.num_good) == (2, 1)
    assert section.goodput.good_ratio == 0.25
    generator = generator_section(
        [GOOD, gave_up], QUIET, num_waits_for_a_connection=0, num_resent=0
    )
    assert generator.num_dropped_turns == 2


def test_each_tenant_is_held_to_its_own_promise() -> None:
    records = [GOOD, replace(GOOD, tenant="globex")]
    acme, globex = tenant_sections(records, [ACME, GLOBEX], None)
    assert (acme.goodput.num_good, globex.goodput.num_good) == (1, 0)
    total = total_section(records, [ACME, GLOBEX], None)
    assert total.goodput.num_good == 1
    assert total.slo is None
    assert acme.throughput.requests_per_s + globex.throughput.requests_per_s == pytest.approx(
        total.throughput.requests_per_s
    )


def test_honesty_is_of_those_who_waited() -> None:
    records = [
        REFUSED,
        replace(GOOD, retry=RetryOutcome.ADMITTED, retry_after_s=1.0),
        replace(REFUSED, retry=RetryOutcome.NOT_TOLD, retry_after_s=None),
        replace(REFUSED, retry=RetryOutcome.NOT_FOLLOWED, retry_after_s=900.0),
    ]
    refusals = total_section(records, [ACME], None).refusals
    assert (refusals.num_refused, refusals.num_with_retry_after) == (4, 3)
    assert (refusals.num_followed, refusals.num_admitted_after) == (2, 1)
    assert refusals.honesty_ratio == 0.5
    assert refusals.longest_retry_after_s == 900.0


def test_tokens_are_the_servers_and_chunks_without_it() -> None:
    uncounted = replace(GOOD, usage=None, num_chunks=9)
    tokens = total_section([GOOD, uncounted], [ACME], None).tokens
    assert (tokens.prompt_tokens, tokens.completion_tokens) == (100, 40)
    assert tokens.prefix_hit_ratio == 0.4
    assert tokens.num_without_usage == 1


def test_no_word_of_a_cache_is_not_a_miss() -> None:
    record = replace(GOOD, usage=Usage(100, 31, None))
    assert total_section([record], [ACME], None).tokens.prefix_hit_ratio is None


def test_cost_is_exact() -> None:
    prices = Prices(Decimal("0.15"), Decimal("0.075"), Decimal("0.60"))
    cost = total_section([GOOD] * 1_000, [ACME], prices).cost
    assert cost is not None
    assert cost.total_usd == Decimal("0.0306")  # (60 * 0.15 + 40 * 0.075 + 31 * 0.60) / 1000
    assert cost.per_thousand_requests_usd == Decimal("0.0306")


def test_warm_up_is_left_out_and_order_is_by_intention() -> None:
    records = [replace(GOOD, intended_s=at_s) for at_s in (3.0, 0.5, 2.0)]
    assert [r.intended_s for r in measured(records, 1.0)] == [2.0, 3.0]


def test_nothing_measured_is_no_failure() -> None:
    section = total_section([], [ACME], None)
    assert (section.num_requests, section.goodput.good_ratio) == (0, 0.0)
    assert section.latency.ttft_s is None


@pytest.mark.parametrize(
    ("health", "send_lag_s", "num_waits", "is_bottleneck"),
    [
        (QUIET, 0.0, 0, False),
        (replace(QUIET, busiest_cpu_ratio=0.95), 0.0, 0, True),
        (replace(QUIET, loop_lags_s=[0.5]), 0.0, 0, True),
        (QUIET, 0.5, 0, True),
        (QUIET, 0.0, 1, True),
    ],
)
def test_the_generator_says_when_it_was_the_bottleneck(
    health: Health, send_lag_s: float, num_waits: int, is_bottleneck: bool
) -> None:
    records = [replace(GOOD, send_lag_s=send_lag_s)]
    section = generator_section(records, health, num_waits_for_a_connection=num_waits, num_resent=0)
    assert section.is_bottleneck is is_bottleneck
    assert bool(section.reasons) is is_bottleneck


def test_columns_hold_every_request() -> None:
    columns = request_columns([GOOD, REFUSED], {"acme": SLO})
    assert columns.outcome == ["completed", "refused"]
    assert columns.is_good == [True, False]
    assert columns.ttft_s == [0.5, None]
    assert columns.cached_tokens == [40, None]
    assert math.isclose(sum(columns.e2e_s), 4.0)
