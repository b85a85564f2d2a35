"""Settled once, however a request ends: here from inside, where the end can be timed."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from contracts.names import HEADER_EVENT_ID, HEADER_TENANT_ID
from contracts.usage import Outcome
from tests.gateway.processes import Policies, Valkey
from tests.gateway.scene import Scene, begun, running, until
from tests.gateway.upstream_server import Upstream, words
from tests.support.waiting import eventually


@pytest.fixture
async def scene(
    tmp_path: Path, valkey: Valkey, policies: Policies, upstream: Upstream, request: object
) -> AsyncIterator[Scene]:
    tenant = f"scene-{tmp_path.name[-40:].strip('_').lower()}".rstrip("_-")
    policies.add(tenant, f"sk-{tenant}")
    async with running(tmp_path, valkey, policies, upstream) as gateway:
        yield Scene(gateway, tmp_path / "spool", tenant, valkey)
    policies.remove(tenant)


async def test_a_cancelled_flow_settles_once(scene: Scene, upstream: Upstream) -> None:
    upstream.behaviour = words(1_000, pause_s=0.01)
    flow = scene.gateway.pipeline.start(scene.exchange(stream=True))
    await begun(upstream, 3)
    flow.cancel()
    assert flow.is_over
    event = await scene.only_event()
    assert event.outcome is Outcome.CANCELLED
    assert event.output_text_tokens > 0
    await asyncio.to_thread(eventually, lambda: upstream.num_hung_up == 1, "the hanging up")


async def test_a_flow_cancelled_while_it_asks_for_the_count_settles_once(
    scene: Scene, upstream: Upstream
) -> None:
    upstream.behaviour = words(1_000, pause_s=0.01)
    exchange = scene.exchange(stream=True)
    flow = scene.gateway.pipeline.start(exchange)
    await begun(upstream, 3)
    exchange.client_lost()
    await asyncio.sleep(0)
    flow.cancel()
    assert flow.is_over
    assert (await scene.only_event()).output_text_tokens > 0


async def test_a_replica_is_told_which_event_its_count_belongs_to(
    scene: Scene, upstream: Upstream
) -> None:
    upstream.behaviour = words(3)
    flow = scene.gateway.pipeline.start(scene.exchange(stream=True))
    await until(lambda: flow.is_over)
    event = await scene.only_event()
    headers = upstream.generations[0].received.headers
    told = [headers[name] for name in (HEADER_EVENT_ID, HEADER_TENANT_ID)]
    assert told == [event.event_id, event.tenant_id]


async def test_a_client_that_leaves_during_admission_costs_nothing(
    scene: Scene, upstream: Upstream
) -> None:
    exchange = scene.exchange(stream=True)
    flow = scene.gateway.pipeline.start(exchange)
    exchange.client_lost()
    await until(lambda: flow.is_over)
    event = await scene.only_event()
    assert (event.outcome, event.total_tokens) == (Outcome.CLIENT_DISCONNECTED, 0)
    assert event.replica is None
    assert upstream.generations == []


async def test_a_client_that_leaves_while_paused_is_noticed(
    scene: Scene, upstream: Upstream
) -> None:
    upstream.behaviour = words(1_000, pause_s=0.01)
    exchange = scene.exchange(stream=True)
    exchange.is_write_paused = True
    flow = scene.gateway.pipeline.start(exchange)
    await begun(upstream, 3)
    exchange.client_lost()
    await until(lambda: flow.is_over)
    event = await scene.only_event()
    assert event.outcome is Outcome.CLIENT_DISCONNECTED
    assert event.output_text_tokens == upstream.generations[0].completion_tokens


async def test_the_end_is_held_until_the_event_is_on_disk(scene: Scene, upstream: Upstream) -> None:
    """Whenever the last byte is out, the event can be read."""
    exchange = scene.exchange(stream=True)
    flow = scene.gateway.pipeline.start(exchange)
    while b"[DONE]" not in scene.transport.written:
        assert scene.events() == [] or len(scene.events()) == 1
        await asyncio.sleep(0)
    assert len(scene.events()) == 1
    assert flow.is_over
