"""All replicas and both gateways are restarted under load: no request fails, no event is lost."""

import asyncio
from collections.abc import Callable

from contracts.usage import Outcome
from tests.gateway.balancer import Balancer, Noticed, num_of
from tests.gateway.conftest import Tenant
from tests.gateway.processes import Gateway
from tests.gateway.upstream_server import Upstream, words
from tests.support.ports import free_port
from tests.support.waiting import eventually

NUM_CLIENTS = 8
NUM_WORDS = 5


def drained(upstream: Upstream) -> bool:
    return all(generation.is_answered for generation in upstream.generations)


def restarted(upstream: Upstream, gateways: list[Gateway]) -> Upstream:
    """Says that it is not ready, finishes what it has, ends, and begins anew on its port."""
    noticed = Noticed(gateways)
    upstream.is_ready = False
    eventually(lambda: noticed.by_all("replica not ready"), "it to be noticed")
    eventually(lambda: drained(upstream), "its answers to end")
    upstream.stop()
    again = Upstream()
    again.port = upstream.port
    again.behaviour = words(NUM_WORDS, pause_s=0.01)
    again.start()
    eventually(lambda: noticed.by_all("replica ready"), "it to be ready")
    return again


async def test_nothing_is_lost(
    start_gateway: Callable[..., Gateway], make_tenant: Callable[..., Tenant]
) -> None:
    replicas = [Upstream(), Upstream()]
    for replica in replicas:
        replica.port = free_port()  # that nobody else is given while it restarts
        replica.start()
        replica.behaviour = words(NUM_WORDS, pause_s=0.01)
    gateways = [
        start_gateway(upstreams={"a": replicas[0], "b": replicas[1]}, GATEWAY_GATEWAY_ID=f"g{n}")
        for n in range(2)
    ]
    tenants = [make_tenant(on=gateway) for gateway in gateways]
    for gateway in gateways:
        tenants[0] = Tenant(tenants[0].name, tenants[0].key, gateway, tenants[0].valkey)
        await tenants[0].accepted()
        await asyncio.to_thread(
            eventually, lambda g=gateway: num_of(g, "replica ready") == 2, "both replicas"
        )
    balancer = Balancer(gateways, tenants[0].key)
    clients = [asyncio.create_task(balancer.keep_asking(n)) for n in range(NUM_CLIENTS)]
    for number in range(2):
        replicas[number] = await asyncio.to_thread(restarted, replicas[number], gateways)
    for gateway in gateways:
        assert await asyncio.to_thread(gateway.stop) == 0
        await asyncio.to_thread(gateway.start)
        tenant = Tenant(tenants[0].name, tenants[0].key, gateway, tenants[0].valkey)
        await tenant.accepted()
    balancer.is_over = True
    await asyncio.gather(*clients)
    for replica in replicas:
        replica.stop()
    check(balancer, tenants[0])


def check(balancer: Balancer, tenant: Tenant) -> None:
    replies = balancer.replies
    assert len(replies) > 10 * NUM_CLIENTS
    assert [r.body for r in replies if r.status != 200] == []
    streams = [r for r in replies if r.headers["content-type"].startswith("text/event-stream")]
    assert {len(stream.payloads) for stream in streams} == {NUM_WORDS + 1}
    assert {stream.payloads[-1] for stream in streams} == {"[DONE]"}
    events = [event for gateway in balancer.gateways for event in gateway.events(tenant.name)]
    assert len({event.event_id for event in events}) == len(events) == len(replies)
    assert {event.outcome for event in events} == {Outcome.COMPLETED}
    settled = {"requests": len(events), "tokens": sum(event.total_tokens for event in events)}
    eventually(lambda: tenant.valkey.settled(tenant.name) == settled, "the settlements")
