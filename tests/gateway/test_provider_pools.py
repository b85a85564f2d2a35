"""A pool with servers of other owners in it: when it is ready, and whose models it has."""

import asyncio
import time

import pytest

from gateway.clock import SYSTEM_CLOCK, Clock
from gateway.discovery.membership import Membership
from gateway.errors import ModelNotFound
from gateway.routing.aliases import Target
from gateway.routing.outside import Outside
from gateway.routing.pool import PoolTimings, ReplicaPool
from gateway.routing.replica import Replica
from gateway.upstream.replica_client import ReplicaClient, Timeouts
from tests.gateway.fleets import fleet_of
from tests.gateway.scene import until
from tests.gateway.upstream_server import Upstream


async def test_a_gateway_is_not_ready_by_a_provider_before_its_replicas_have_been_asked(
    upstream: Upstream,
) -> None:
    timeouts = Timeouts(connect_s=5.0, head_s=5.0, idle_s=5.0, keep_alive_s=5.0)
    upstream.is_ready = False
    theirs = Replica(
        ReplicaClient("theirs", "http://127.0.0.1:1", timeouts), frozenset({"m"}), Outside(1.0)
    )
    clients = [ReplicaClient("a", upstream.url, timeouts)]
    pool = ReplicaPool(clients, {}, PoolTimings(0.01, 5.0, 1.0), SYSTEM_CLOCK, [theirs])
    assert pool.num_ready == 0
    watching = asyncio.create_task(pool.watch(lambda: None))
    await until(lambda: pool.num_ready == 1)
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    await pool.close()
    assert not pool["a"].is_ready


async def test_nor_before_it_has_heard_who_its_replicas_are(upstream: Upstream) -> None:
    """But for a while only: there may be none."""
    now_s = 0.0
    clock = Clock(time.time, lambda: now_s)
    timeouts = Timeouts(connect_s=5.0, head_s=5.0, idle_s=5.0, keep_alive_s=5.0)
    theirs = Replica(
        ReplicaClient("theirs", "http://127.0.0.1:1", timeouts), frozenset({"m"}), Outside(1.0)
    )
    timings = PoolTimings(0.01, 5.0, 1.0)
    pool = ReplicaPool([], {}, timings, clock, [theirs], ["file", "dns"])
    unheard = ReplicaPool([], {}, timings, clock, [theirs], ["file"])
    membership = Membership(pool, lambda name, url: ReplicaClient(name, url, timeouts))
    assert pool.num_ready == 0
    membership.publisher("dns")({})
    membership.publisher("file")({"a": upstream.url})
    assert pool.num_ready == 0, "a has not been asked"
    watching = asyncio.create_task(pool.watch(lambda: None))
    await until(lambda: pool.num_ready == 2)
    membership.publisher("dns")({"b": upstream.url})
    assert pool.num_ready == 2, "it has begun"
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    await pool.close()
    assert unheard.num_ready == 0
    now_s += 31.0
    assert unheard.num_ready == 1


async def test_what_only_a_provider_serves_is_a_model_of_whom_it_may_serve() -> None:
    fleet = fleet_of("a", outside={"theirs": 1.0})
    pool = fleet.pool
    pool["a"].models = frozenset({"ours"})
    pool.follow((), ())
    assert pool.served_models() == ["ours"]
    assert pool.served_models(("theirs",)) == ["m", "ours"]
    assert pool.ready_models == {"ours"}
    assert pool.resolve("m", providers=("theirs",)) == "m"
    with pytest.raises(ModelNotFound, match=r"Served now: ours\."):
        pool.resolve("m")


async def test_an_alias_leads_nobody_to_a_model_that_he_is_not_permitted() -> None:
    aliases: dict[str, Target] = {"canary": {"ours": 0.5, "m": 0.5}, "only": "m"}
    pool = fleet_of("a", outside={"theirs": 1.0}, aliases=aliases).pool
    pool["a"].models = frozenset({"ours"})
    pool.follow((), ())
    shares = (0.1, 0.9)
    assert [pool.resolve("canary", lambda s=s: s) for s in shares] == ["ours", "ours"]
    permitted = [pool.resolve("canary", lambda s=s: s, ("theirs",)) for s in shares]
    assert permitted == ["ours", "m"]
    assert pool.resolve("only", providers=("theirs",)) == "m"
    with pytest.raises(ModelNotFound):
        pool.resolve("only")
    pool["a"].set_ready(is_ready=False)
    pool.follow((), ())
    assert [pool.resolve("canary", lambda s=s: s) for s in shares] == ["ours", "ours"], "back soon"
