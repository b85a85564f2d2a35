"""While the store is away each gateway admits its leased share, and tells the store afterwards."""

import asyncio
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from contracts import metrics
from contracts.quota import QuotaRule
from gateway.admission.local_shares import LocalShares
from gateway.admission.verdict import LimitKind
from gateway.errors import QuotaUnavailable
from tests.gateway.conftest import Tenant
from tests.gateway.http_client import chat, get
from tests.gateway.processes import Gateway, Policies, Valkey
from tests.gateway.quota_bench import Bench, Terms, reservation_of, running_limiter
from tests.gateway.scene import until
from tests.gateway.upstream_server import Upstream
from tests.support.waiting import eventually

NUM_GATEWAYS = 3
LEASE_S = 60.0
HOME = "the node that decides as a rule"


def leased(num_gateways: int = NUM_GATEWAYS) -> LocalShares:
    shares = LocalShares(LEASE_S)
    shares.renew(HOME, num_gateways, 0.0)
    return shares


def admitted(shares: LocalShares, terms: Terms, tokens: int, at_s: float) -> bool:
    return shares.reserve(reservation_of("acme", tokens, terms), HOME, at_s).refusal is None


@pytest.mark.parametrize("outage_s", [0.0, 20.0, 59.0])
def test_all_gateways_together_stay_within_the_bound(outage_s: float) -> None:
    """The stated bound: ``limit * (1 + outage / 60 s)``, whoever asks for how much more."""
    terms = Terms(6_000, 1_000_000)
    gateways = [leased() for _ in range(NUM_GATEWAYS)]
    steps = [step / 10 for step in range(int(outage_s * 10) + 1)]
    tokens = sum(
        100
        for at_s in steps
        for gateway in gateways
        for _ in range(30)
        if admitted(gateway, terms, 100, at_s)
    )
    bound = 6_000 * (1 + outage_s / 60)
    assert 0.94 * bound <= tokens <= bound


def test_the_share_ends_with_its_lease() -> None:
    shares = leased()
    assert admitted(shares, Terms(6_000), 1, LEASE_S - 0.1)
    with pytest.raises(QuotaUnavailable):
        admitted(shares, Terms(6_000), 1, LEASE_S)


def test_nothing_is_admitted_that_was_never_leased() -> None:
    with pytest.raises(QuotaUnavailable):
        admitted(LocalShares(LEASE_S), Terms(6_000), 1, 0.0)


@pytest.mark.parametrize(
    "rule", [QuotaRule(tokens_per_day=10**9), QuotaRule(key_id="k1", tokens_per_month=10**9)]
)
def test_a_budget_is_never_shared(rule: QuotaRule) -> None:
    with pytest.raises(QuotaUnavailable, match="budget"):
        admitted(leased(), Terms(6_000, rules=(rule,)), 1, 0.0)


def test_an_ask_larger_than_the_share_waits_for_the_store() -> None:
    shares = leased()
    assert admitted(shares, Terms(6_000), 2_000, 0.0)
    with pytest.raises(QuotaUnavailable, match="too large"):
        admitted(shares, Terms(6_000), 2_001, 0.0)


def test_a_refusal_by_the_share_tells_the_true_wait() -> None:
    shares, terms = leased(), Terms(6_000, 1_000_000)
    assert admitted(shares, terms, 2_000, 0.0)
    refusal = shares.reserve(reservation_of("acme", 500, terms), HOME, 0.0).refusal
    assert refusal is not None
    assert (refusal.limit, refusal.retry_after_ms) == (LimitKind.TOKENS_PER_MINUTE, 15_000)
    assert admitted(shares, terms, 500, 15.0)


def test_what_was_not_used_comes_back_to_the_share() -> None:
    shares, terms = leased(), Terms(6_000)
    ask = reservation_of("acme", 2_000, terms)
    assert shares.reserve(ask, HOME, 0.0).refusal is None
    shares.settle(ask, 100, 0.0)
    assert admitted(shares, terms, 1_900, 0.0)


def test_a_release_gives_the_request_back_too() -> None:
    shares, terms = leased(num_gateways=1), Terms(6_000, 1)
    ask = reservation_of("acme", 100, terms)
    assert shares.reserve(ask, HOME, 0.0).refusal is None
    assert not admitted(shares, terms, 1, 0.0)
    for _ in range(2):  # the second time it is not held any more
        shares.release(ask, 0.0)
    assert admitted(shares, terms, 6_000, 0.0)
    assert not admitted(shares, terms, 1, 0.0)


def test_a_node_that_is_away_is_not_leased_from_by_the_answers_of_others() -> None:
    shares, terms = leased(), Terms(6_000)
    shares.renew("another node", NUM_GATEWAYS, LEASE_S - 1)
    shares.renew("another node", 1, LEASE_S)
    with pytest.raises(QuotaUnavailable, match="not reachable"):
        admitted(shares, terms, 1, LEASE_S)
    ask = reservation_of("acme", 6_000, terms)
    assert shares.reserve(ask, "another node", LEASE_S).refusal is None


def test_a_node_that_knows_of_more_gateways_is_believed() -> None:
    shares, terms = leased(), Terms(6_000)
    shares.renew("another node", 1, 0.0)
    with pytest.raises(QuotaUnavailable, match="too large"):
        admitted(shares, terms, 2_001, 0.0)


def test_concurrency_is_shared_in_whole_slots() -> None:
    shares = leased()
    terms = Terms(10**6, rules=(QuotaRule(concurrent_requests=7),))
    asks = [reservation_of("acme", 1, terms) for _ in range(3)]
    verdicts = [shares.reserve(ask, HOME, 0.0).refusal for ask in asks]
    assert [refusal is None for refusal in verdicts] == [True, True, False]
    shares.settle(asks[0], 1, 0.0)
    assert admitted(shares, terms, 1, 0.0)


@pytest.fixture
def own_valkey(tmp_path: Path) -> Iterator[Valkey]:
    valkey = Valkey(tmp_path)
    valkey.start()
    yield valkey
    valkey.stop(signal.SIGKILL)


async def test_the_store_counts_the_gateways(own_valkey: Valkey) -> None:
    """Two that are alive: each may admit half."""
    shares = [LocalShares(LEASE_S) for _ in range(2)]
    async with (
        running_limiter(own_valkey.url, shares=shares[0]) as one,
        running_limiter(own_valkey.url, shares=shares[1]) as two,
    ):
        await until(lambda: all(share.num_gateways == 2 for share in shares))
        own_valkey.stop()
        await until(lambda: not one.is_reachable and not two.is_reachable)
        terms = Terms(6_000)
        for limiter in (one, two):
            verdict = await limiter.reserve(reservation_of("acme", 3_000, terms))
            assert verdict.refusal is None
            again = await limiter.reserve(reservation_of("acme", 1_000, terms))
            assert again.refusal is not None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGSTOP], ids=["gone", "frozen"])
async def test_what_was_served_meanwhile_is_charged_once_the_store_is_back(
    own_valkey: Valkey, number: signal.Signals
) -> None:
    async with running_limiter(own_valkey.url, share_lease_s=60, call_deadline_s=3.0) as limiter:
        bench = Bench(limiter, own_valkey)
        terms = Terms(6_000, rules=(QuotaRule(concurrent_requests=10),))
        before = bench.reservation(100, terms)
        assert (await limiter.reserve(before)).refusal is None
        num_before = limiter.num_local_admissions
        if number == signal.SIGSTOP:
            own_valkey.signal(number)
        else:
            own_valkey.stop()
        during = [bench.reservation(500, terms) for _ in range(4)]
        for ask in during:
            assert (await limiter.reserve(ask)).refusal is None
        assert limiter.num_local_admissions == num_before + 4
        await limiter.settle(before, used_tokens=50, used_nano_usd=0)
        for ask in during[:3]:
            await limiter.settle(ask, used_tokens=300, used_nano_usd=0)
        limiter.release(during[3])
        if number == signal.SIGSTOP:
            own_valkey.signal(signal.SIGCONT)
        else:
            own_valkey.start()
        assert await limiter.flush(60) == 0
        assert own_valkey.settled(bench.tenant) == {"requests": 4, "tokens": 950}
        assert own_valkey.num_open_reservations(bench.tenant) == 0
        assert 5_000 <= bench.level() <= 5_750  # whatever was refilled before the last charge
        with own_valkey.client as client:
            assert client.hget(bench.key("bucket"), "running") == b"0"


async def test_the_store_is_told_of_what_still_runs(own_valkey: Valkey) -> None:
    """And that lease is renewed, as of any other."""
    async with running_limiter(own_valkey.url, share_lease_s=60, call_deadline_s=3.0) as limiter:
        bench = Bench(limiter, own_valkey)
        own_valkey.stop()
        await until(lambda: not limiter.is_reachable)
        terms = Terms(6_000, rules=(QuotaRule(concurrent_requests=10),))
        running = bench.reservation(500, terms)
        assert (await limiter.reserve(running)).refusal is None
        own_valkey.start()

        def is_told() -> bool:
            return own_valkey.num_open_reservations(bench.tenant) == 1

        await asyncio.to_thread(eventually, is_told, "the store to be told")
        with own_valkey.client as client:
            assert client.hget(bench.key("bucket"), "running") == b"1"
        await limiter.settle(running, used_tokens=30, used_nano_usd=0)
        assert await limiter.flush(60) == 0
        assert own_valkey.settled(bench.tenant) == {"requests": 1, "tokens": 30}
        assert not is_told()


async def test_no_more_is_admitted_than_can_be_told_later(own_valkey: Valkey) -> None:
    async with running_limiter(own_valkey.url, share_lease_s=60, max_open=3) as limiter:
        own_valkey.stop()
        await until(lambda: not limiter.is_reachable)
        asks = [reservation_of("acme", 1, Terms(6_000)) for _ in range(4)]
        for ask in asks[:3]:
            assert (await limiter.reserve(ask)).refusal is None
        await limiter.settle(asks[0], used_tokens=1, used_nano_usd=0)
        with pytest.raises(QuotaUnavailable, match="too long"):
            await limiter.reserve(asks[3])
        own_valkey.start()
        assert await limiter.flush(60) == 0
        assert (await limiter.reserve(asks[3])).refusal is None


async def test_what_one_tenant_owes_holds_up_no_other(own_valkey: Valkey) -> None:
    """Nor one settlement that the store refuses the others of its tenant."""
    async with running_limiter(own_valkey.url) as limiter:
        stuck, partly, well = (Bench(limiter, own_valkey) for _ in range(3))
        terms = Terms(1_000_000)
        asks = [(bench, bench.reservation(1, terms)) for bench in [stuck] * 300 + [partly, well]]
        asks += [(partly, partly.reservation(1, terms))]
        for _, ask in asks:
            assert (await limiter.reserve(ask)).refusal is None
        with own_valkey.client as client:
            client.set(stuck.key("holds"), "what no script can read")
            client.hset(partly.key("holds"), asks[300][1].reservation_id, "nor this")
        own_valkey.stop()
        await until(lambda: not limiter.is_reachable)
        for bench, ask in asks:
            assert await bench.settle(ask, 1) is False
        own_valkey.start()

        def are_settled() -> bool:
            return all(own_valkey.settled(b.tenant).get("requests") == 1 for b in (partly, well))

        await asyncio.to_thread(eventually, are_settled, "the others")


async def outages_told(gateway: Gateway) -> list[str]:
    """Their reasons, once there is one: the log is written a little later than it is told."""

    def reasons() -> list[str]:
        lines = gateway.log_lines()
        return [line["reason"] for line in lines if line["message"] == "quota store not usable"]

    await asyncio.to_thread(eventually, lambda: bool(reasons()), "the outage in the log")
    return reasons()


async def test_a_gateway_goes_on_within_its_share(
    own_valkey: Valkey,
    policies: Policies,
    start_gateway: Callable[..., Gateway],
    upstream: Upstream,
) -> None:
    gateway = start_gateway(quota_url=own_valkey.url)
    policies.add("sharing", "sk-sharing", requests_per_minute=12)
    policies.add("capped", "sk-capped", rules=(QuotaRule(tokens_per_day=10**6),))
    sharing = Tenant("sharing", "sk-sharing", gateway, own_valkey)
    capped = Tenant("capped", "sk-capped", gateway, own_valkey)
    await sharing.accepted()
    own_valkey.stop()
    await outages_told(gateway)
    replies = await asyncio.gather(*(sharing.chat(chat()) for _ in range(14)))
    assert Counter(reply.status for reply in replies) == {200: 12, 429: 2}
    refused = next(reply for reply in replies if reply.status == 429)
    assert refused.error["code"] == "rate_limit_exceeded"
    assert int(refused.headers["retry-after"]) >= 1
    reply = await capped.chat(chat())
    assert (reply.status, reply.error["code"]) == (503, "quota_unavailable")
    assert (await get(gateway.port, "/ready")).status == 200
    numbers = (await get(gateway.port, "/metrics")).body.decode().splitlines()
    assert f"{metrics.GATEWAY_QUOTA_LOST} 1" in numbers
    assert f"{metrics.GATEWAY_QUOTA_LOCAL} 12" in numbers
    assert await outages_told(gateway) == ["lost"], "one line an outage"
    own_valkey.start()
    served = sum(event.total_tokens for event in sharing.events())
    expected = {"requests": 12, "tokens": served}
    await asyncio.to_thread(
        eventually, lambda: own_valkey.settled("sharing") == expected, "the charge"
    )
    assert own_valkey.num_open_reservations("sharing") == 0
    policies.remove("sharing")
    policies.remove("capped")
