"""Three counts, equal to the token, whatever clients do: engine, quota, events."""

import asyncio
import random
from collections.abc import Callable

from contracts.usage import Outcome, UsageSource
from tests.gateway.conftest import Tenant
from tests.gateway.http_client import chat, hang_up, read_reply, request_bytes
from tests.gateway.processes import Gateway
from tests.gateway.upstream_server import PROMPT_TOKENS, Generation, Upstream, words
from tests.support.waiting import eventually

NUM_REQUESTS = 150


async def use_once(tenant: Tenant, seed: int) -> None:
    """A client with a fate drawn from ``seed``: patient, leaving at some byte, or mute."""
    fate = random.Random(seed)
    reader, writer = await asyncio.open_connection("127.0.0.1", tenant.gateway.port)
    writer.write(request_bytes(chat(stream=fate.random() < 0.7), tenant.key))
    leaves_after_s = fate.choice([None, None, fate.random() * 0.3])
    try:
        await asyncio.wait_for(read_reply(reader), leaves_after_s)
    except TimeoutError:
        pass
    await hang_up(writer)


async def use_patiently(tenant: Tenant) -> None:
    reply = await tenant.chat(chat(stream=True))
    assert "[DONE]" not in reply.payloads


async def break_off(generation: Generation) -> None:
    """In the middle of a stream, which nobody resumes; a document is tried again."""
    if generation.received.document.get("stream"):
        await generation.start_stream()
        await generation.word()
    generation.is_stopped.set()
    generation.reset()


async def test_counts_agree_after_a_churn_of_clients_and_failures(
    start_gateway: Callable[..., Gateway], make_tenant: Callable[..., Tenant], upstream: Upstream
) -> None:
    chance = random.Random(7)

    async def behave(generation: Generation) -> None:
        count = chance.randint(0, 40)
        if chance.random() < 0.1:
            await break_off(generation)
            return
        await words(count, pause_s=0.005)(generation)

    gateway = start_gateway()
    tenant = make_tenant(on=gateway, requests_per_minute=1_000_000, tokens_per_minute=10**9)
    await tenant.accepted()
    upstream.behaviour = break_off
    await use_patiently(tenant)
    upstream.behaviour = behave
    for start in range(0, NUM_REQUESTS, 50):
        await asyncio.gather(*(use_once(tenant, start + n) for n in range(50)))
    valkey = tenant.valkey
    await asyncio.to_thread(
        eventually, lambda: valkey.num_open_reservations(tenant.name) == 0, "settlements"
    )
    assert gateway.stop() == 0
    events = tenant.events()
    assert [event.gateway_seq for event in events] == list(range(1, len(events) + 1))
    assert len({event.event_id for event in events}) == len(events)
    assert valkey.settled(tenant.name) == {
        "requests": len(events),
        "tokens": sum(event.total_tokens for event in events),
    }
    assert {e.usage_source for e in events} == {UsageSource.ENGINE}
    assert {e.outcome for e in events} == {
        *(Outcome.COMPLETED, Outcome.CLIENT_DISCONNECTED, Outcome.UPSTREAM_FAILED)
    }
    # A warm connection that is reset before the first byte counts as stale: its request is sent
    # once more, under the same id.
    last_of_each_id = {g.received.headers["x-request-id"]: g for g in upstream.generations}
    by_engine = sum(g.completion_tokens + PROMPT_TOKENS for g in last_of_each_id.values())
    assert sum(event.total_tokens for event in events) == by_engine
