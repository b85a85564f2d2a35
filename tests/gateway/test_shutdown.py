"""SIGTERM: what runs may finish, what cannot is ended honestly, and all of it is settled."""

import asyncio
import json
import signal
from collections.abc import Callable

from contracts.usage import Outcome, UsageSource
from tests.gateway.conftest import Tenant
from tests.gateway.http_client import chat, hang_up, read_reply, request_bytes
from tests.gateway.processes import Gateway, Policies
from tests.gateway.upstream_server import Upstream, words
from tests.support.waiting import eventually

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def begin(tenant: Tenant, upstream: Upstream, **members: object) -> Connection:
    reader, writer = await asyncio.open_connection("127.0.0.1", tenant.gateway.port)
    before = len(upstream.generations)
    writer.write(request_bytes(chat(**members), tenant.key))
    await asyncio.to_thread(
        eventually, lambda: len(upstream.generations) > before, "the replica to begin"
    )
    return reader, writer


async def test_running_requests_finish_within_the_drain(
    start_gateway: Callable[..., Gateway], make_tenant: Callable[..., Tenant], upstream: Upstream
) -> None:
    gateway = start_gateway(GATEWAY_DRAIN_TIMEOUT_S="20")
    tenant = make_tenant(on=gateway)
    await tenant.accepted()
    upstream.behaviour = words(20, pause_s=0.02)
    reader, writer = await begin(tenant, upstream, stream=True)
    stopped = asyncio.create_task(asyncio.to_thread(gateway.stop))
    assert (await read_reply(reader)).payloads[-1] == "[DONE]"
    assert await stopped == 0
    assert tenant.only_event().outcome is Outcome.COMPLETED
    await hang_up(writer)


async def test_when_a_key_was_used_last_outlives_the_gateway(
    start_gateway: Callable[..., Gateway], make_tenant: Callable[..., Tenant], policies: Policies
) -> None:
    gateway = start_gateway()
    tenant = make_tenant(on=gateway)
    await tenant.accepted()
    assert (await tenant.chat(chat())).status == 200
    assert await asyncio.to_thread(gateway.stop) == 0
    noted = policies.path.with_name(f"{policies.path.name}.keys-used")
    assert f"key-{tenant.name}" in json.loads(noted.read_bytes())


async def test_what_outlasts_the_drain_is_cancelled_and_billed(
    start_gateway: Callable[..., Gateway], make_tenant: Callable[..., Tenant], upstream: Upstream
) -> None:
    gateway = start_gateway(GATEWAY_DRAIN_TIMEOUT_S="0.2")
    tenant = make_tenant(on=gateway)
    await tenant.accepted()
    upstream.behaviour = words(5_000, pause_s=0.01)
    streamed, first_writer = await begin(tenant, upstream, stream=True)
    whole, second_writer = await begin(tenant, upstream)
    stopped = asyncio.create_task(asyncio.to_thread(gateway.stop))
    reply = await read_reply(streamed)
    assert reply.status == 200
    assert json.loads(reply.payloads[-1])["error"]["code"] == "shutting_down"
    refused = await read_reply(whole)
    assert (refused.status, refused.error["code"]) == (503, "shutting_down")
    assert await stopped == 0
    await hang_up(first_writer)
    await hang_up(second_writer)
    events = tenant.events()
    assert [event.outcome for event in events] == [Outcome.CANCELLED] * 2
    by_engine = sorted(g.completion_tokens for g in upstream.generations)
    assert sorted(event.output_text_tokens for event in events) == by_engine
    assert len(upstream.aborted) == 2
    total = sum(event.total_tokens for event in events)
    assert tenant.valkey.settled(tenant.name) == {"requests": 2, "tokens": total}


async def test_an_idle_gateway_stops_at_once(start_gateway: Callable[..., Gateway]) -> None:
    gateway = start_gateway()
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    assert await asyncio.to_thread(gateway.stop, signal.SIGINT) == 0
    assert await reader.read() == b""
    writer.close()
    await writer.wait_closed()
    assert not [line for line in gateway.log_lines() if line["level"] == "error"]


async def test_an_answer_that_nobody_reads_has_the_drain_too(
    start_gateway: Callable[..., Gateway], make_tenant: Callable[..., Tenant], upstream: Upstream
) -> None:
    """Its client is expected back: what the engine made is counted by the engine."""
    gateway = start_gateway(GATEWAY_DRAIN_TIMEOUT_S="0.2")
    tenant = make_tenant(on=gateway)
    await tenant.accepted()
    upstream.behaviour = words(5_000, pause_s=0.01)
    _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(request_bytes(chat(stream=True), tenant.key, idempotency_key="k"))
    await asyncio.to_thread(eventually, lambda: bool(upstream.generations), "the replica to begin")
    await hang_up(writer)
    assert await asyncio.to_thread(gateway.stop) == 0
    event = tenant.only_event()
    assert (event.outcome, event.usage_source) == (Outcome.CANCELLED, UsageSource.ENGINE)
    assert event.output_text_tokens == upstream.generations[0].completion_tokens
    assert len(upstream.aborted) == 1
