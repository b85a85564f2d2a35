"""Quotas on a real cluster of three nodes: each tenant is decided where its slot lives."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from contracts.names import tenant_id
from contracts.quota import QuotaRule
from gateway.admission.quota_scripts import greeting
from gateway.admission.quota_store import QuotaStore, slot_of
from gateway.admission.redis_limiter import RedisLimiter
from gateway.admission.resp import pack
from gateway.errors import QuotaUnavailable
from gateway.resp_address import RespAddress, StoreTls
from pandal.doctor.valkey import valkey_findings
from tests.gateway.quota_bench import Terms, reservation_of, running_limiter
from tests.gateway.scene import until
from tests.gateway.valkey_cluster import NUM_SLOTS, ValkeyCluster
from tests.support.certificates import self_signed
from tests.support.waiting import eventually

TERMS = Terms(1_000, rules=(QuotaRule(concurrent_requests=4, tokens_per_day=5_000),))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyCluster]:
    cluster = ValkeyCluster(tmp_path_factory.mktemp("cluster"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
async def limiter(cluster: ValkeyCluster) -> AsyncIterator[RedisLimiter]:
    async with running_limiter(cluster.url) as limiter:
        yield limiter


@pytest.fixture
async def store(cluster: ValkeyCluster) -> AsyncIterator[QuotaStore]:
    store = QuotaStore(RespAddress.parse(cluster.url), 5.0, greeting("test"))
    task = asyncio.create_task(store.run())
    await until(lambda: store.is_reachable)
    yield store
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_slots_are_the_specifications(cluster: ValkeyCluster) -> None:
    for tag in ("acme", "a", "tenant-0", "x" * 63):
        assert cluster.nodes[0].command("KEYSLOT", f"{{{tag}}}:quota:bucket") == slot_of(tag)


async def test_every_tenant_is_decided_where_its_slot_lives(
    cluster: ValkeyCluster, limiter: RedisLimiter
) -> None:
    await spread_over(cluster, limiter)


async def test_a_cluster_over_tls_that_asks_who_we_are_is_used_like_any(tmp_path: Path) -> None:
    if "REDIS_BINARY" not in os.environ:
        pytest.skip("REDIS_BINARY does not name a Redis or Valkey that speaks TLS")
    certificate = self_signed(tmp_path)
    cluster = ValkeyCluster(tmp_path, os.environ["REDIS_BINARY"], certificate)
    try:
        await asyncio.to_thread(cluster.start)
        address = RespAddress.parse(cluster.url, cluster.tls)
        async with running_limiter(address) as limiter:
            await spread_over(cluster, limiter)
        findings = await valkey_findings(address)
        assert findings[0].fact == "the cluster is whole (3 primaries)"
        stranger = StoreTls(certificate.path)
        (refused,) = await valkey_findings(RespAddress.parse(cluster.url, stranger))
        assert refused.advice == "TLSV13_ALERT_CERTIFICATE_REQUIRED"
    finally:
        cluster.stop()


async def spread_over(cluster: ValkeyCluster, limiter: RedisLimiter) -> None:
    tenants = [f"spread-{number}" for number in range(12)]
    asks = [reservation_of(t, 300, TERMS) for t in tenants for _ in range(5)]
    verdicts = await asyncio.gather(*(limiter.reserve(ask) for ask in asks))
    admitted = [a for a, v in zip(asks, verdicts, strict=True) if v.refusal is None]
    assert sorted(a.plan.tenant_id for a in admitted) == sorted(tenants * 3)
    for ask in admitted:
        assert await limiter.settle(ask, used_tokens=100, used_nano_usd=0)
    homes = {cluster.home_of(slot_of(tenant)).port for tenant in tenants}
    assert homes == {node.port for node in cluster.nodes}
    for tenant in tenants:
        with cluster.home_of(slot_of(tenant)).client as client:
            told = client.hmget(f"{{{tenant}}}:quota:settled", "requests", "tokens")
            assert told == [b"3", b"300"]


async def test_the_doctor_asks_every_node(cluster: ValkeyCluster) -> None:
    findings = await valkey_findings(RespAddress.parse(cluster.url))
    facts = [finding.fact for finding in findings]
    assert facts[0] == "the cluster is whole (3 primaries)"
    for node in cluster.nodes:
        assert f"127.0.0.1:{node.port}: it keeps nothing on disk" in facts
        assert f"127.0.0.1:{node.port}: its clock is this machine's" in facts


async def test_a_slot_that_moved_is_followed(cluster: ValkeyCluster, store: QuotaStore) -> None:
    slot = slot_of("moved-away")
    home = cluster.home_of(slot)
    other = next(node for node in cluster.nodes if node is not home)
    cluster.give(slot, other)
    try:
        for _ in range(2):
            assert await store.call(pack("SET", "{moved-away}:x", "1"), slot) == b"OK"
        with other.client as client:
            assert client.get("{moved-away}:x") == b"1"
            client.delete("{moved-away}:x")
    finally:
        cluster.give(slot, home)


async def test_a_slot_on_its_way_is_asked_for_where_it_goes(
    cluster: ValkeyCluster, store: QuotaStore
) -> None:
    slot = slot_of("on-its-way")
    home = cluster.home_of(slot)
    other = next(node for node in cluster.nodes if node is not home)
    other.command("SETSLOT", slot, "IMPORTING", home.name)
    home.command("SETSLOT", slot, "MIGRATING", other.name)
    try:
        assert await store.call(pack("SET", "{on-its-way}:x", "1"), slot) == b"OK"
        assert await store.call(pack("GET", "{on-its-way}:x"), slot) == b"1"
    finally:
        cluster.give(slot, other)
    assert await store.call(pack("DEL", "{on-its-way}:x"), slot) == 1
    cluster.give(slot, home)


async def test_what_a_moving_slot_refuses_is_settled_once_it_has_moved(
    cluster: ValkeyCluster, limiter: RedisLimiter
) -> None:
    """Scripts wait for the whole slot: a store says TRYAGAIN while its keys are on both sides."""
    tenant = tenant_id("half-way")
    slot = slot_of(tenant)
    home = cluster.home_of(slot)
    other = next(node for node in cluster.nodes if node is not home)
    other.command("SETSLOT", slot, "IMPORTING", home.name)
    home.command("SETSLOT", slot, "MIGRATING", other.name)
    with pytest.raises(QuotaUnavailable):
        await limiter.reserve(reservation_of(tenant, 300, TERMS))
    late = reservation_of(tenant, 300, TERMS)
    assert await limiter.settle(late, used_tokens=1, used_nano_usd=0) is False
    cluster.give(slot, other)
    assert await limiter.flush(10.0) == 0
    assert (await limiter.reserve(reservation_of(tenant, 300, TERMS))).refusal is None


async def test_a_node_that_dies_takes_only_its_own_tenants_along(
    cluster: ValkeyCluster, limiter: RedisLimiter
) -> None:
    victim = cluster.nodes[2]
    tenants = [f"node-{number}" for number in range(30)]
    orphans = [t for t in tenants if cluster.home_of(slot_of(t)) is victim]
    others = [t for t in tenants if t not in orphans]
    victim.stop()
    try:
        for tenant in others:
            assert (await limiter.reserve(reservation_of(tenant, 1, TERMS))).refusal is None
        for tenant in orphans:
            with pytest.raises(QuotaUnavailable):
                await limiter.reserve(reservation_of(tenant, 1, TERMS))
    finally:
        victim.start()
    await asyncio.to_thread(eventually, victim.is_complete, "the node to come back")

    async with asyncio.timeout(60):
        while not await is_admitted(limiter, orphans[0]):  # noqa: ASYNC110  # it has no event
            await asyncio.sleep(0.02)


async def test_a_dead_nodes_shares_end_although_the_others_answer(cluster: ValkeyCluster) -> None:
    victim, other = cluster.nodes[2], cluster.nodes[1]
    terms = Terms(1_000_000)
    orphan, well = (
        next(t for t in map("share-{}".format, range(100)) if cluster.home_of(slot_of(t)) is node)
        for node in (victim, other)
    )
    async with running_limiter(cluster.url, share_lease_s=2.0) as limiter:
        victim.stop()
        try:
            async with asyncio.timeout(60):
                while await is_admitted(limiter, orphan, terms):  # noqa: ASYNC110  # no event
                    await asyncio.sleep(0.02)
            assert await is_admitted(limiter, well, terms)
        finally:
            victim.start()
    await asyncio.to_thread(eventually, victim.is_complete, "the node to come back")


async def is_admitted(limiter: RedisLimiter, tenant: str, terms: Terms = TERMS) -> bool:
    try:
        return (await limiter.reserve(reservation_of(tenant, 1, terms))).refusal is None
    except QuotaUnavailable:
        return False


def test_a_tag_has_one_slot_of_all() -> None:
    slots = {slot_of(f"tenant-{number}") for number in range(1_000)}
    assert len(slots) > 900
    assert all(0 <= slot < NUM_SLOTS for slot in slots)
