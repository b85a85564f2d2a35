"""Rules per key and model, concurrency, budgets and leases, against the real store."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, date, datetime, timedelta
from importlib import resources

import pytest

from contracts.quota import ModelPrice, QuotaRule
from gateway.admission.verdict import LimitKind, Refusal, Reservation, Verdict, refused
from gateway.errors import InsufficientQuota, InvalidRequest, RateLimited
from tests.gateway.processes import Valkey
from tests.gateway.quota_bench import MODEL, Bench, Terms, reservation_of, running_limiter
from tests.support.waiting import eventually

PRICE = ModelPrice(model=MODEL, input_uncached=2_000, input_cache_read=500, output_text=6_000)
FOREVER_MS = 10**12


@pytest.fixture
async def bench(valkey: Valkey) -> AsyncIterator[Bench]:
    async with running_limiter(valkey.url) as limiter:
        yield Bench(limiter, valkey)


def kind_of(verdict: Verdict) -> LimitKind | None:
    return None if verdict.refusal is None else verdict.refusal.limit


def held(bench: Bench) -> dict[str, object]:
    """What the store holds for the tenant, but for the levels, which time alone changes."""
    with bench.valkey.client as client:
        bucket = client.hgetall(bench.key("bucket"))
        return {
            "running": {k: v for k, v in bucket.items() if k.endswith(b"running")},
            "budget": client.hgetall(bench.key("budget")),
            "holds": client.hgetall(bench.key("holds")),
            "open": client.zrange(bench.key("reservations"), 0, -1),
        }


RULES = {
    "key": (QuotaRule(key_id="k1", requests_per_minute=1), {"key_id": "k2"}),
    "model": (QuotaRule(model=MODEL, requests_per_minute=1), {"model": "model-b"}),
    "key-and-model": (
        QuotaRule(key_id="k1", model=MODEL, requests_per_minute=1),
        {"model": "model-b"},
    ),
}


@pytest.mark.parametrize("name", RULES)
async def test_a_rule_counts_what_it_names_and_nothing_else(bench: Bench, name: str) -> None:
    rule, other = RULES[name]
    terms = Terms(1_000_000, rules=(rule,))
    assert (await bench.ask(1, terms)).refusal is None
    second = await bench.ask(1, terms)
    assert kind_of(second) is LimitKind.REQUESTS_PER_MINUTE
    assert second.budget.requests_limit == 1
    assert (await bench.ask(1, terms, **other)).budget.requests_limit == 1_000_000


async def test_the_tightest_rule_is_the_one_that_headers_show(bench: Bench) -> None:
    terms = Terms(10_000, 100, rules=(QuotaRule(key_id="k1", tokens_per_minute=500),))
    budget = (await bench.ask(100, terms)).budget
    assert (budget.tokens_limit, budget.tokens_remaining) == (500, 400)
    assert (budget.requests_limit, budget.requests_remaining) == (100, 99)


@pytest.mark.parametrize(
    "rule",
    [
        pytest.param(QuotaRule(key_id="k1", tokens_per_minute=120), id="tokens-a-minute"),
        pytest.param(QuotaRule(key_id="k1", requests_per_minute=1), id="requests-a-minute"),
        pytest.param(QuotaRule(key_id="k1", concurrent_requests=1), id="concurrency"),
        pytest.param(QuotaRule(key_id="k1", tokens_per_day=150), id="tokens-a-day"),
        pytest.param(QuotaRule(key_id="k1", tokens_per_month=150), id="tokens-a-month"),
        pytest.param(QuotaRule(key_id="k1", nano_usd_per_day=150), id="money-a-day"),
        pytest.param(QuotaRule(key_id="k1", nano_usd_per_month=150), id="money-a-month"),
    ],
)
async def test_a_refusal_costs_nothing_in_any_dimension(bench: Bench, rule: QuotaRule) -> None:
    everything = QuotaRule(concurrent_requests=10, tokens_per_day=10**6, nano_usd_per_month=10**6)
    terms = Terms(1_000_000, rules=(everything, rule), prices=(PRICE,))
    assert (await bench.ask(100, terms, nano_usd=100)).refusal is None
    before, level = held(bench), bench.level()
    for _ in range(3):
        assert (await bench.ask(100, terms, nano_usd=100)).refusal is not None
    assert held(bench) == before
    assert bench.level() >= level


async def test_concurrency_is_shared_and_freed_by_settlement(bench: Bench, valkey: Valkey) -> None:
    terms = Terms(1_000_000, rules=(QuotaRule(concurrent_requests=2),))
    async with running_limiter(valkey.url) as other:
        held = [bench.reservation(1, terms) for _ in range(2)]
        assert (await bench.limiter.reserve(held[0])).refusal is None
        assert (await other.reserve(held[1])).refusal is None
        refusal = (await bench.ask(1, terms, turn=1)).refusal
        assert refusal is not None
        assert (refusal.limit, refusal.allowed) == (LimitKind.CONCURRENT_REQUESTS, 2)
        await bench.settle(held[0], 1)
        assert (await other.reserve(bench.reservation(1, terms, turn=1))).refusal is None
        await other.release(held[1])
        assert (await bench.ask(1, terms)).refusal is None


POSTDATE = """
local record = cmsgpack.unpack(redis.call('HGET', KEYS[1], ARGV[1]))
record[3] = record[3] + 3600000
return redis.call('HSET', KEYS[1], ARGV[1], cmsgpack.pack(record))
"""


async def set_the_clock_back(bench: Bench, terms: Terms) -> None:
    ask = bench.reservation(1, terms)
    await bench.limiter.reserve(ask)
    with bench.valkey.client as client:
        client.eval(POSTDATE, 1, bench.key("holds"), ask.reservation_id)
    await bench.settle(ask, 1)


async def hold_for_no_time(bench: Bench, _: Terms) -> None:
    with bench.valkey.client as client:
        client.hset(bench.key("bucket"), "held_ms", 0)


@pytest.mark.parametrize("before", [set_the_clock_back, hold_for_no_time])
async def test_concurrency_is_refused_however_short_the_wait(
    bench: Bench, before: Callable[[Bench, Terms], Awaitable[None]]
) -> None:
    terms = Terms(1_000_000, rules=(QuotaRule(concurrent_requests=2),))
    await before(bench, terms)
    kinds = [kind_of(await bench.ask(1, terms)) for _ in range(10)]
    assert kinds == [None] * 2 + [LimitKind.CONCURRENT_REQUESTS] * 8


async def test_a_withdrawn_ask_teaches_not_how_long_requests_are_held(bench: Bench) -> None:
    """Under overload each is withdrawn within its millisecond."""
    terms = Terms(1_000_000, rules=(QuotaRule(concurrent_requests=2),))
    ask = bench.reservation(1, terms)
    assert (await bench.limiter.reserve(ask)).refusal is None
    with bench.valkey.client as client:
        held_ms = client.hget(bench.key("bucket"), "held_ms")
        assert await bench.limiter.release(ask)
        assert client.hget(bench.key("bucket"), "held_ms") == held_ms


async def test_a_dead_gateways_holds_end_with_their_lease(bench: Bench, valkey: Valkey) -> None:
    rule = QuotaRule(concurrent_requests=1, tokens_per_day=1_000, nano_usd_per_day=1_000)
    terms = Terms(1_000_000, rules=(rule,), prices=(PRICE,))
    assert (await bench.ask(1, Terms(1_000_000))).refusal is None  # whose lease is longer
    async with running_limiter(valkey.url, lease_s=3.0) as dead:
        leaked = bench.reservation(900, terms, nano_usd=900)
        assert (await dead.reserve(leaked)).refusal is None
    assert kind_of(await bench.ask(900, terms, nano_usd=900)) is LimitKind.TOKENS_PER_DAY
    with bench.valkey.client as client:
        (end,) = client.zrange(bench.key("reservations"), 0, 0, withscores=True)
        eventually(lambda: server_ms(bench) > end[1], "the end of the lease")
    assert (await bench.ask(900, terms, nano_usd=900)).refusal is None
    assert bench.spent() == {"d tokens": 900, "d nano": 900, "m tokens": 900, "m nano": 900}
    assert bench.valkey.num_open_reservations(bench.tenant) == 2


async def test_a_living_gateway_renews_its_leases(bench: Bench, valkey: Valkey) -> None:
    terms = Terms(1_000_000, rules=(QuotaRule(concurrent_requests=1),))
    async with running_limiter(valkey.url, lease_s=3.0) as living:
        running = bench.reservation(1, terms)
        assert (await living.reserve(running)).refusal is None
        with bench.valkey.client as client:
            score = client.zscore(bench.key("reservations"), running.reservation_id)
            assert score is not None

            def is_past_the_first_lease() -> bool:
                return server_ms(bench) > score

            await asyncio.to_thread(eventually, is_past_the_first_lease, "the first lease's end")
        refused_again = await bench.ask(1, terms, turn=1)
        assert kind_of(refused_again) is LimitKind.CONCURRENT_REQUESTS
        assert await living.settle(running, used_tokens=1, used_nano_usd=0)
    assert (await bench.ask(1, terms, turn=1)).refusal is None


def server_ms(bench: Bench) -> int:
    with bench.valkey.client as client:
        seconds, microseconds = client.time()
        return int(seconds) * 1000 + int(microseconds) // 1000


def end_lease(bench: Bench, reservation: Reservation) -> None:
    with bench.valkey.client as client:
        client.zadd(bench.key("reservations"), {reservation.reservation_id: 1})
        client.hdel(bench.key("bucket"), "sweep_at_ms")


async def test_a_settlement_after_the_lease_counts_once_and_in_full(bench: Bench) -> None:
    began_s = time.monotonic()
    terms = Terms(1_000, rules=(QuotaRule(tokens_per_day=10_000, concurrent_requests=5),))
    late = bench.reservation(500, terms)
    await bench.limiter.reserve(late)
    end_lease(bench, late)
    swept = await bench.ask(1, terms)
    assert swept.budget.tokens_remaining >= 998
    for _ in range(2):
        await bench.settle(late, 300)
    assert bench.valkey.settled(bench.tenant) == {"requests": 1, "tokens": 300}
    assert bench.spent()["d tokens"] == 301
    level = bench.level()
    assert 699 <= level < 760 + (time.monotonic() - began_s) * 1_000 / 60
    with bench.valkey.client as client:
        assert client.zcard(bench.key("swept")) == 0
        assert client.hlen(bench.key("holds")) == 1


@pytest.mark.parametrize(
    ("rule", "kind"),
    [
        (QuotaRule(tokens_per_day=1_000), LimitKind.TOKENS_PER_DAY),
        (QuotaRule(tokens_per_month=1_000), LimitKind.TOKENS_PER_MONTH),
        (QuotaRule(nano_usd_per_day=1_000), LimitKind.NANO_USD_PER_DAY),
        (QuotaRule(nano_usd_per_month=1_000), LimitKind.NANO_USD_PER_MONTH),
    ],
    ids=lambda value: value.name if isinstance(value, LimitKind) else "",
)
async def test_a_budget_is_hard_and_its_refusal_lasts_to_the_periods_end(
    bench: Bench, rule: QuotaRule, kind: LimitKind
) -> None:
    terms = Terms(1_000_000, rules=(rule,), prices=(PRICE,))
    asks = [bench.reservation(300, terms, nano_usd=300) for _ in range(20)]
    verdicts = await asyncio.gather(*(bench.limiter.reserve(ask) for ask in asks))
    assert [kind_of(v) for v in verdicts].count(None) == 3
    refusal = next(v.refusal for v in verdicts if v.refusal is not None)
    assert (refusal.limit, refusal.allowed, refusal.remaining) == (kind, 1_000, 100)
    assert isinstance(refused(refusal, asks[0]), InsufficientQuota)
    now = datetime.now(UTC)
    midnight = datetime(now.year, now.month, now.day, tzinfo=UTC) + timedelta(days=1)
    if kind in (LimitKind.TOKENS_PER_MONTH, LimitKind.NANO_USD_PER_MONTH):
        midnight = (now.replace(day=28) + timedelta(days=4)).replace(
            day=1, hour=0, minute=0, second=0, microsecond=0
        )
    waited_s = refusal.retry_after_ms / 1000
    assert 0 <= waited_s - (midnight - now).total_seconds() + 5 < 40  # jittered up
    admitted = asks[verdicts.index(next(v for v in verdicts if v.refusal is None))]
    await bench.settle(admitted, 10, nano_usd=10)
    assert (await bench.ask(300, terms, nano_usd=300)).refusal is None


async def test_a_budget_is_held_at_the_most_whatever_rates_expect(bench: Bench) -> None:
    """Ten whose answers are expected to be short, and are as long as they may."""
    terms = Terms(1_000_000, rules=(QuotaRule(tokens_per_day=1_000),))
    asks = [reservation_of(bench.tenant, 10, terms, budget_tokens=300) for _ in range(10)]
    verdicts = await asyncio.gather(*(bench.limiter.reserve(ask) for ask in asks))
    admitted = [a for a, v in zip(asks, verdicts, strict=True) if v.refusal is None]
    assert len(admitted) == 3
    assert bench.spent()["d tokens"] == 900
    assert bench.level() >= 1_000_000 - 30
    refusal = next(v.refusal for v in verdicts if v.refusal is not None)
    assert "used 900, this request needs 300" in str(refused(refusal, asks[-1]))
    for ask in admitted:
        await bench.settle(ask, 300)
    assert bench.spent()["d tokens"] == 900
    smaller = reservation_of(bench.tenant, 10, terms, budget_tokens=100)
    assert (await bench.limiter.reserve(smaller)).refusal is None
    await bench.settle(smaller, 40)
    assert bench.spent() == {"d tokens": 940, "d nano": 0, "m tokens": 940, "m nano": 0}


async def test_a_budget_outweighs_a_rate_in_a_refusal(bench: Bench) -> None:
    """Waiting for the rate would not help."""
    terms = Terms(1_000, 1, rules=(QuotaRule(tokens_per_day=1_000),))
    await bench.ask(600, terms)
    assert kind_of(await bench.ask(600, terms)) is LimitKind.TOKENS_PER_DAY


BACKDATE = """
local record = cmsgpack.unpack(redis.call('HGET', KEYS[1], ARGV[1]))
local day = record[4]
record[4] = day - 1
redis.call('HSET', KEYS[1], ARGV[1], cmsgpack.pack(record))
for _, unit in ipairs({'tokens', 'nano'}) do
  local spent = redis.call('HGET', KEYS[2], 'd' .. day .. unit)
  redis.call('HSET', KEYS[2], 'd' .. (day - 1) .. unit, spent)
  redis.call('HDEL', KEYS[2], 'd' .. day .. unit)
end
redis.call('HSET', KEYS[2], 'day', day - 1)
return day
"""


async def test_a_refund_goes_to_the_day_it_came_from(bench: Bench) -> None:
    terms = Terms(1_000_000, rules=(QuotaRule(tokens_per_day=1_000),))
    over_midnight = bench.reservation(900, terms)
    await bench.limiter.reserve(over_midnight)
    with bench.valkey.client as client:
        keys = bench.key("holds"), bench.key("budget")
        today = int(client.eval(BACKDATE, 2, *keys, over_midnight.reservation_id))
        assert (await bench.ask(1_000, terms)).refusal is None  # a new day, with all of its budget
        await bench.settle(over_midnight, 100)
        spent = client.hmget(bench.key("budget"), f"d{today - 1}tokens", f"d{today}tokens")
    assert spent == [b"100", b"1000"]
    assert kind_of(await bench.ask(1, terms)) is LimitKind.TOKENS_PER_DAY


async def test_what_the_bucket_has_refilled_is_not_given_back_again(bench: Bench) -> None:
    """The window of the first reservation is over: its refund must not fill the second's."""
    began_s = time.monotonic()
    terms = Terms(60_000)
    first, second = bench.reservation(60_000, terms), bench.reservation(50_000, terms)
    await bench.limiter.reserve(first)
    with bench.valkey.client as client:  # a minute passes
        client.hincrby(bench.key("bucket"), "at_ms", -60_000)
    assert (await bench.limiter.reserve(second)).refusal is None
    with bench.valkey.client as client:
        client.hincrby(bench.key("bucket"), "full_ms", 1)  # the test's minute took no time
    await bench.settle(first, 0)
    level = bench.level()
    assert level < 11_000 + (time.monotonic() - began_s) * 1_000


async def test_old_periods_are_forgotten(bench: Bench) -> None:
    terms = Terms(1_000_000, rules=(QuotaRule(tokens_per_day=1_000),))
    await bench.ask(1, terms)
    with bench.valkey.client as client:
        key = bench.key("budget")
        today = int(client.hget(key, "day") or 0)
        client.hset(key, mapping={"day": today - 1, "day-": today - 7})
        client.hset(key, mapping={f"d{today - 7}tokens": 5, f"d{today - 7}nano": 5})
        await bench.ask(1, terms)
        assert not client.hexists(key, f"d{today - 7}tokens")
        assert client.hmget(key, "day", "day-") == [b"%d" % today, b"%d" % (today - 1)]
        assert 60 * 86_400 < client.ttl(key) <= 70 * 86_400


def test_months_are_the_calendars(valkey: Valkey) -> None:
    text = (resources.files("gateway.admission") / "lua" / "calendar.lua").read_text()
    text += """
local month_of, first_day_of = calendar()
local found = {}
for i = 1, #ARGV do
  local month = month_of(tonumber(ARGV[i]))
  found[2 * i - 1], found[2 * i] = month, first_day_of(month)
end
return found
"""
    epoch = date(1970, 1, 1)
    days = [*range(0, 3_000, 13), *range(18_000, 25_000), *range(46_000, 48_000, 7)]
    with valkey.client as client:
        found = client.eval(text, 0, *days)
    for day, month, first in zip(days, found[::2], found[1::2], strict=True):
        on = epoch + timedelta(days=day)
        assert month == on.year * 12 + on.month - 1
        assert first == (on.replace(day=1) - epoch).days


def test_money_is_counted_by_class_and_rounded_up() -> None:
    assert PRICE.nano_usd(uncached=1_000, cached=1_000, output=1_000) == 8_500
    assert PRICE.nano_usd(uncached=0, cached=1, output=0) == 1
    assert PRICE.nano_usd(uncached=0, cached=0, output=0) == 0


def test_what_can_never_fit_is_no_rate_limit() -> None:
    rules = (QuotaRule(key_id="k1", tokens_per_day=500, nano_usd_per_month=100),)
    plan = Terms(1_000, rules=rules, prices=(PRICE,)).plan("acme")
    plan.check_fits(tokens=500, budget_tokens=500, nano_usd=100)
    with pytest.raises(InvalidRequest, match="1000 tokens ever"):
        plan.check_fits(tokens=1_001, budget_tokens=1, nano_usd=0)
    with pytest.raises(InvalidRequest, match="500 tokens ever"):
        plan.check_fits(tokens=1, budget_tokens=501, nano_usd=0)
    with pytest.raises(InvalidRequest, match=r"than the budget of 0\.0000001 USD ever"):
        plan.check_fits(tokens=1, budget_tokens=1, nano_usd=101)


def test_a_model_without_a_price_is_not_served_under_a_budget_in_money() -> None:
    terms = Terms(1_000, rules=(QuotaRule(nano_usd_per_month=100),), prices=(PRICE,))
    assert terms.plan("acme").price is PRICE
    with pytest.raises(InvalidRequest, match="no price") as raised:
        terms.plan("acme", model="model-b")
    assert raised.value.code == "model_not_priced"


def test_a_refusal_by_a_budget_in_money_is_told_in_dollars() -> None:
    refusal = Refusal(LimitKind.NANO_USD_PER_DAY, "", 5 * 10**9, 800_000_000, 1_000)
    asked = reservation_of("acme", 1, Terms(1_000), nano_usd=1_250_000_000)
    error = refused(refusal, asked)
    assert isinstance(error, InsufficientQuota)
    assert "USD per day: limit 5, used 4.2, this request needs 1.25;" in str(error)


async def test_a_refusal_names_its_rule(bench: Bench) -> None:
    terms = Terms(1_000, rules=(QuotaRule(key_id="k1", model=MODEL, concurrent_requests=1),))
    await bench.ask(1, terms)
    asked = bench.reservation(1, terms)
    refusal = (await bench.limiter.reserve(asked)).refusal
    assert refusal is not None
    error = refused(refusal, asked)
    assert isinstance(error, RateLimited)
    assert error.limit == "concurrent_requests"
    assert "concurrent requests (key k1, model model-a): limit 1, used 1" in str(error)
