"""A replica that does not begin: the next one does, and a request nobody begins costs nothing."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from contracts.usage import Outcome
from gateway.clock import Clock
from tests.gateway.conftest import Tenant
from tests.gateway.http_client import chat, post
from tests.gateway.processes import Gateway, Policies, Valkey
from tests.gateway.scene import Scene, running
from tests.gateway.upstream_server import Behaviour, Generation, Upstream, words
from tests.support.waiting import eventually

POLLED_ONCE = {"GATEWAY_POLL_INTERVAL_S": "600"}


def refuse(retry_after: str | None = None) -> Behaviour:
    """As a replica that is full or draining."""
    header = b"" if retry_after is None else b"retry-after: %b\r\n" % retry_after.encode()

    async def behave(generation: Generation) -> None:
        await generation.send(
            b"HTTP/1.1 503 Service Unavailable\r\n%bcontent-length: 2\r\n\r\n{}" % header
        )

    return behave


def num_ready(gateway: Gateway) -> int:
    return sum(line["message"] == "replica ready" for line in gateway.log_lines())


async def wait_for_both(gateway: Gateway) -> None:
    await asyncio.to_thread(eventually, lambda: num_ready(gateway) == 2, "both replicas")


async def test_a_replica_that_is_gone_leaves_its_work_to_the_next(
    start_gateway: Callable[..., Gateway], make_tenant: Callable[..., Tenant], upstream: Upstream
) -> None:
    other = Upstream()
    other.start()
    gateway = start_gateway(upstreams={"a": upstream, "b": other}, **POLLED_ONCE)
    tenant = make_tenant(on=gateway)
    await tenant.accepted()
    await wait_for_both(gateway)
    other.stop()
    upstream.reset()
    replies = await asyncio.gather(
        *(post(gateway.port, chat(f"prompt {n}"), tenant.key) for n in range(20))
    )
    assert {reply.status for reply in replies} == {200}
    assert {event.replica for event in tenant.events()} == {"a"}


async def test_a_replica_that_says_503_has_done_nothing_yet(
    start_gateway: Callable[..., Gateway], make_tenant: Callable[..., Tenant], upstream: Upstream
) -> None:
    draining = Upstream()
    draining.start()
    draining.behaviour = refuse()
    gateway = start_gateway(upstreams={"a": upstream, "b": draining}, **POLLED_ONCE)
    tenant = make_tenant(on=gateway)
    await tenant.accepted()
    await wait_for_both(gateway)
    before = draining.num_connections
    replies = [await post(gateway.port, chat(f"prompt {n}"), tenant.key) for n in range(48)]
    assert {reply.status for reply in replies} == {200}
    assert {event.replica for event in tenant.events()} == {"a"}
    assert len(draining.generations) > 1, "full for one request is not away for all"
    assert draining.num_connections <= before + 1, "its connection is as good as before"
    draining.stop()


async def test_a_full_replica_gets_the_next_request(
    start_gateway: Callable[..., Gateway], make_tenant: Callable[..., Tenant], upstream: Upstream
) -> None:
    gateway = start_gateway(**POLLED_ONCE)
    tenant = make_tenant(on=gateway)
    await tenant.accepted()
    upstream.behaviour = refuse()
    assert (await tenant.chat(chat())).status == 503
    upstream.behaviour = words(3)
    assert (await tenant.chat(chat())).status == 200


@pytest.mark.parametrize(
    ("asked", "passed_on"), [("7", "7"), ("0", "0"), (None, "1"), ("Fri, 31 Dec 1999", "1")]
)
async def test_the_client_waits_as_long_as_the_replica_asks(
    tenant: Tenant, upstream: Upstream, asked: str | None, passed_on: str
) -> None:
    upstream.behaviour = refuse(asked)
    reply = await tenant.chat(chat())
    assert (reply.status, reply.error["code"]) == (503, "server_is_overloaded")
    assert reply.headers["retry-after"] == passed_on


async def test_the_shortest_wait_is_passed_on(
    start_gateway: Callable[..., Gateway], make_tenant: Callable[..., Tenant], upstream: Upstream
) -> None:
    other = Upstream()
    other.start()
    gateway = start_gateway(upstreams={"a": upstream, "b": other}, **POLLED_ONCE)
    tenant = make_tenant(on=gateway)
    await tenant.accepted()
    await wait_for_both(gateway)
    upstream.behaviour, other.behaviour = refuse("9"), refuse("4")
    reply = await post(gateway.port, chat(), tenant.key)
    assert (reply.status, reply.headers["retry-after"]) == (503, "4")
    other.stop()


async def test_a_503_that_comes_late_may_follow_work(
    tmp_path: Path, valkey: Valkey, policies: Policies, upstream: Upstream
) -> None:
    late_s = 0.0

    async def give_up_late(generation: Generation) -> None:
        nonlocal late_s
        late_s += 60.0
        await refuse()(generation)

    policies.add("late", "sk-late")
    upstream.behaviour = give_up_late
    clock = Clock(time.time, lambda: time.monotonic() + late_s)
    async with running(tmp_path, valkey, policies, upstream, clock) as gateway:
        scene = Scene(gateway, tmp_path / "spool", "late", valkey)
        await gateway.pipeline.serve(scene.exchange())
        assert scene.transport.written.startswith(b"HTTP/1.1 502 ")
        assert (await scene.only_event()).outcome is Outcome.UPSTREAM_FAILED


async def test_a_request_that_nobody_begins_was_never_admitted(
    start_gateway: Callable[..., Gateway], make_tenant: Callable[..., Tenant]
) -> None:
    only = Upstream()
    only.start()
    gateway = start_gateway(upstreams={"a": only}, **POLLED_ONCE)
    tenant = make_tenant(on=gateway, requests_per_minute=10)
    await tenant.accepted()
    only.behaviour = refuse()
    refused = await post(gateway.port, chat(), tenant.key)
    only.stop()
    unreachable = await post(gateway.port, chat(), tenant.key)
    for reply in (refused, unreachable):
        assert (reply.status, reply.error["code"]) == (503, "server_is_overloaded")
        assert reply.headers["retry-after"] == "1"
    assert tenant.num_requests_left() == 10
    assert tenant.valkey.num_open_reservations(tenant.name) == 0
    assert tenant.valkey.settled(tenant.name) == {}
    assert tenant.events() == []


async def test_a_request_that_one_began_and_nobody_takes_on_is_billed_as_nothing(
    start_gateway: Callable[..., Gateway], make_tenant: Callable[..., Tenant], upstream: Upstream
) -> None:
    """Else an auditor would bill it by the record of the one who died over it."""
    other = Upstream()
    other.start()
    gateway = start_gateway(upstreams={"a": upstream, "b": other}, **POLLED_ONCE)
    tenant = make_tenant(on=gateway)
    await tenant.accepted()
    await wait_for_both(gateway)
    begun: list[Generation] = []

    async def die_over_the_first(generation: Generation) -> None:
        begun.append(generation)
        if len(begun) > 1:
            await refuse()(generation)
            return
        await generation.send(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n")
        generation.reset()

    upstream.behaviour = other.behaviour = die_over_the_first
    assert (await post(gateway.port, chat(), tenant.key)).status == 503
    (event,) = tenant.events()
    assert (event.outcome, event.total_tokens) == (Outcome.UPSTREAM_FAILED, 0)
    await asyncio.to_thread(
        eventually,
        lambda: tenant.valkey.settled(tenant.name) == {"requests": 1, "tokens": 0},
        "the request to be settled",
    )
    other.stop()
