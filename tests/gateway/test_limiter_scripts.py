"""The scripts against the real store: sums, bounds, and the server's clock."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contracts.policy import TIERS
from tests.gateway.processes import Valkey
from tests.gateway.quota_bench import Bench, Terms, running_limiter


@pytest.fixture
async def bench(valkey: Valkey) -> AsyncIterator[Bench]:
    async with running_limiter(valkey.url) as limiter:
        yield Bench(limiter, valkey)


async def test_a_second_settlement_changes_nothing(bench: Bench) -> None:
    reservation = bench.reservation(500, Terms(1_000))
    assert (await bench.limiter.reserve(reservation)).refusal is None
    await bench.settle(reservation, 100)
    level = bench.level()
    await bench.settle(reservation, 100)
    assert bench.level() == level
    assert bench.valkey.settled(bench.tenant) == {"requests": 1, "tokens": 100}


async def test_a_refund_never_exceeds_the_burst(bench: Bench) -> None:
    reservation = bench.reservation(1_000, Terms(60_000))
    await bench.limiter.reserve(reservation)
    with bench.valkey.client as client:  # a minute later it is full again, before the refund
        client.hincrby(f"{{{bench.tenant}}}:quota:bucket", "at_ms", -60_000)
    await bench.settle(reservation, 0)
    assert bench.level() <= 60_000


async def test_an_overrun_makes_a_debt_of_one_burst_at_most(bench: Bench) -> None:
    began_s = time.monotonic()
    reservation = bench.reservation(10, Terms(1_000))
    await bench.limiter.reserve(reservation)
    await bench.settle(reservation, 1_000_000)
    assert bench.level() == -1_000
    verdict = await bench.limiter.reserve(bench.reservation(10, Terms(1_000)))
    assert verdict.refusal is not None
    assert verdict.budget.tokens_remaining == 0
    elapsed_ms = (time.monotonic() - began_s) * 1_000
    assert 59_000 - elapsed_ms < verdict.refusal.retry_after_ms <= 64_000
    assert bench.valkey.settled(bench.tenant)["tokens"] == 1_000_000


async def test_a_bucket_that_was_evicted_is_full(bench: Bench) -> None:
    await bench.limiter.reserve(bench.reservation(900, Terms(1_000)))
    with bench.valkey.client as client:
        client.hdel(f"{{{bench.tenant}}}:quota:bucket", "tokens", "tpm")
    verdict = await bench.limiter.reserve(bench.reservation(900, Terms(1_000)))
    assert verdict.refusal is None


async def test_keys_expire_but_the_settled_totals(bench: Bench) -> None:
    reservation = bench.reservation(10, Terms(1_000))
    await bench.limiter.reserve(reservation)
    second = bench.reservation(10, Terms(1_000))
    await bench.limiter.reserve(second)
    await bench.settle(reservation, 5)
    with bench.valkey.client as client:
        for name in ("bucket", "reservations", "holds"):
            assert client.pttl(bench.key(name)) > 0
        assert client.pttl(bench.key("settled")) == -1


@pytest.mark.parametrize("is_swept", [False, True])
async def test_keys_that_vanished_expire_again_once_they_are_back(
    bench: Bench, is_swept: bool
) -> None:
    """Within the minute in which times to live are not set again."""
    first = bench.reservation(10, Terms(1_000))
    await bench.limiter.reserve(first)
    if is_swept:  # then its record stays
        with bench.valkey.client as client:
            client.zadd(bench.key("reservations"), {first.reservation_id: 1})
            client.hdel(bench.key("bucket"), "sweep_at_ms")
    else:
        await bench.settle(first, 5)
    await bench.limiter.reserve(bench.reservation(10, Terms(1_000)))
    with bench.valkey.client as client:
        for name in ("bucket", "reservations", "holds"):
            assert client.pttl(bench.key(name)) > 0


async def test_what_is_known_for_a_day_is_forgotten_though_no_lease_ends(bench: Bench) -> None:
    """More than one call forgets."""
    with bench.valkey.client as client:
        client.zadd(bench.key("swept"), {f"settled-{number}": 1 for number in range(150)})
        for num_left in (50, 0):
            await bench.ask(1, Terms(1_000))
            assert client.zcard(bench.key("swept")) == num_left


async def test_a_bucket_expires_whatever_made_it(bench: Bench) -> None:
    refused = await bench.ask(5_000, Terms(1_000))
    assert refused.refusal is not None
    with bench.valkey.client as client:
        assert client.pttl(bench.key("bucket")) > 0
        late = bench.reservation(10, Terms(1_000))
        await bench.limiter.reserve(late)
        client.delete(bench.key("bucket"))
        await bench.settle(late, 5)
        assert client.pttl(bench.key("bucket")) > 0


async def test_a_store_that_forgot_the_scripts_learns_them_again(bench: Bench) -> None:
    reservation = bench.reservation(10, Terms(1_000))
    with bench.valkey.client as client:
        client.script_flush()
    await bench.limiter.reserve(reservation)
    with bench.valkey.client as client:
        client.script_flush()
    await bench.settle(reservation, 7)
    assert bench.valkey.settled(bench.tenant) == {"requests": 1, "tokens": 7}


async def test_a_cancelled_reserve_leaves_nothing_held(bench: Bench) -> None:
    reservation = bench.reservation(400, Terms(1_000, requests=10))
    task = asyncio.create_task(bench.limiter.reserve(reservation))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert await bench.limiter.flush(60.0) == 0
    assert bench.valkey.num_open_reservations(bench.tenant) == 0
    assert bench.valkey.settled(bench.tenant) == {}
    verdict = await bench.limiter.reserve(bench.reservation(900, Terms(1_000, requests=10)))
    assert verdict.refusal is None
    assert verdict.budget.requests_remaining == 9


def refilled(tokens_per_minute: int, since_monotonic_s: float) -> float:
    return (time.monotonic() - since_monotonic_s) * tokens_per_minute / 60


async def test_toggling_a_limit_mints_no_tokens_within_a_debt(bench: Bench) -> None:
    began_s = time.monotonic()
    low, high = Terms(1_000), Terms(10_000)
    await bench.limiter.reserve(bench.reservation(1_000, low))
    raised = await bench.limiter.reserve(bench.reservation(9_000, high))
    assert raised.refusal is None
    assert raised.budget.tokens_remaining < 100 + refilled(10_000, began_s)
    lowered = await bench.limiter.reserve(bench.reservation(500, low))
    assert lowered.refusal is not None
    again = await bench.limiter.reserve(bench.reservation(9_500, high))
    assert again.refusal is not None


async def test_a_settlement_does_not_bring_old_limits_back(bench: Bench) -> None:
    began_s = time.monotonic()
    low, high = Terms(1_000), Terms(10_000)
    running = bench.reservation(500, low)
    await bench.limiter.reserve(running)
    await bench.limiter.reserve(bench.reservation(9_000, high))
    await bench.settle(running, 500)
    verdict = await bench.limiter.reserve(bench.reservation(2_000, high))
    assert verdict.refusal is not None
    assert verdict.budget.tokens_remaining < 700 + refilled(10_000, began_s)


async def test_a_clock_set_back_gives_nothing_away(bench: Bench) -> None:
    await bench.limiter.reserve(bench.reservation(1_000, Terms(1_000)))
    with bench.valkey.client as client:
        ahead_ms = int(client.time()[0]) * 1000 + 3_600_000
        client.hset(f"{{{bench.tenant}}}:quota:bucket", "at_ms", ahead_ms)
    verdict = await bench.limiter.reserve(bench.reservation(900, Terms(1_000)))
    assert verdict.refusal is not None


asks = st.lists(
    st.tuples(st.integers(min_value=1, max_value=600), st.integers(min_value=0, max_value=900)),
    min_size=1,
    max_size=25,
)


@given(asks=asks, tpm=st.integers(min_value=600, max_value=5_000))
@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
async def test_levels_follow_a_simple_model(bench: Bench, asks: object, tpm: int) -> None:
    """(reserved, used) pairs: the bucket stays in bounds and the totals are the sums.

    The model knows no time; refill can only add, so it bounds the level from below, and from above
    by what a minute gives in the time the whole run takes.
    """
    bench.renew_tenant()
    own = Terms(tpm)
    level, used_sum, num_admitted = float(tpm), 0, 0
    loop = asyncio.get_running_loop()
    began = loop.time()
    for reserved, used in asks:  # type: ignore[attr-defined]
        reservation = bench.reservation(reserved, own)
        verdict = await bench.limiter.reserve(reservation)
        slack = (loop.time() - began + 0.01) * tpm / 60
        if verdict.refusal is not None:
            assert level < reserved
            needed_ms = (reserved - level) / tpm * 60_000
            assert verdict.refusal.retry_after_ms <= needed_ms * 1.05 + 1
            bench.forget_turns()
            continue
        assert level + slack >= reserved
        await bench.settle(reservation, used)
        level = max(-tpm, min(tpm, level - used))
        used_sum, num_admitted = used_sum + used, num_admitted + 1
        found = bench.level()
        slack = (loop.time() - began + 0.01) * tpm / 60
        assert level - 1e-3 <= found <= min(tpm, level + slack + 1)
    expected = {"requests": num_admitted, "tokens": used_sum} if num_admitted else {}
    assert bench.valkey.settled(bench.tenant) == expected
    assert bench.valkey.num_open_reservations(bench.tenant) == 0


@pytest.mark.parametrize("tier", sorted(TIERS))
async def test_every_tier_fits_the_scripts_integers(bench: Bench, tier: str) -> None:
    limits = TIERS[tier]
    verdict = await bench.ask(1, Terms(limits.tokens_per_minute, limits.requests_per_minute))
    assert verdict.budget.tokens_remaining == limits.tokens_per_minute - 1
