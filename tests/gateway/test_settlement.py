"""Settled once, however a request ends: here from inside, where the end can be timed."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from contracts.admission import AdmissionPolicy
from contracts.names import HEADER_EVENT_ID, HEADER_TENANT_ID, tenant_id
from contracts.usage import Outcome, UsageSource
from gateway.admission.cost import CostModel
from gateway.admission.local_shares import LocalShares
from gateway.admission.quota_plan import quota_plan
from gateway.admission.quota_store import QuotaStore
from gateway.admission.redis_limiter import RedisLimiter
from gateway.admission.verdict import Reservation
from gateway.clock import SYSTEM_CLOCK
from gateway.event_encoder import EventEncoder
from gateway.exact_counting import ExactCounting
from gateway.experience import Experience
from gateway.metering import EventSource, Meter, Usage
from gateway.outbox.spool import Spool
from gateway.prompt import Prompt
from gateway.resilience.fallback import Target
from gateway.resp_address import RespAddress
from gateway.settlement import Settlement, SettlementDesk
from gateway.turnstile import Turnstile
from tests.gateway.fleets import context_of, fleet_of, inference_request
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


# What is settled stands, whatever goes wrong behind it


class Unteachable(CostModel):
    """A defect in what is learned from."""

    def learn_prompt(self, model: str, prompt: Prompt, num_tokens: int) -> None:
        raise ArithmeticError(f"{num_tokens} tokens of {model}")


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[SettlementDesk]:
    """Without a store: what it would be told waits."""
    fleet = fleet_of("a")
    turnstile = Turnstile(fleet, SYSTEM_CLOCK, max_waiting=10, ageing_s=30.0)
    spool = Spool(tmp_path, "boot", segment_bytes=1_000_000)
    spool.start()
    yield SettlementDesk(
        limiter=RedisLimiter(
            QuotaStore(RespAddress.parse("redis://127.0.0.1:1"), 0.1),
            LocalShares(1.0),
            name="g",
            lease_s=1.0,
            monotonic_s=SYSTEM_CLOCK.monotonic_s,
        ),
        spool=spool,
        events=EventEncoder(EventSource("g", "boot", SYSTEM_CLOCK)),
        turnstile=turnstile,
        experience=Experience(
            Unteachable(0.95), ExactCounting(fleet.pool), fleet, SYSTEM_CLOCK.monotonic_s
        ),
        waits=True,
    )
    await spool.stop(60.0)


def settlement_at(desk: SettlementDesk, meter: Meter) -> Settlement:
    policy = AdmissionPolicy(ttft_target_ms=1_000)
    context = context_of("acme", policy, inference_request("m", reserved_tokens=99))
    assert desk.turnstile.enter(context, meter, 1) is None, "there is room: it goes at once"
    plan = quota_plan(context.grant, "m")
    reservation = Reservation(
        reservation_id="r",
        plan=plan,
        reserved_tokens=100,
        budget_tokens=100,
        reserved_nano_usd=0,
        turn=0,
    )
    return Settlement(desk, context, reservation, meter)


def charged(desk: SettlementDesk) -> int:
    unshared = desk.turnstile.queues["m"].unshared()
    return sum(s.num_tokens for share, s in unshared.items() if share.tenant == tenant_id("acme"))


async def test_what_cannot_be_learned_spoils_no_answer_and_is_settled_once(
    desk: SettlementDesk,
) -> None:
    told: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: told.append(context["exception"]))
    settlement = settlement_at(desk, Meter())
    closing = settlement.close(Usage(11, 0, 3, UsageSource.ENGINE), Outcome.COMPLETED)
    assert settlement.close(Usage(0, 0, 0, UsageSource.ENGINE), Outcome.CANCELLED) is closing
    assert desk.spool.next_seq == 2, "one event"
    assert charged(desk) == 14
    await until(lambda: bool(told))
    assert isinstance(told[0], ArithmeticError)


async def test_who_fell_back_is_charged_where_it_had_its_turn(desk: SettlementDesk) -> None:
    meter = Meter()
    settlement = settlement_at(desk, meter)
    asyncio.get_running_loop().set_exception_handler(lambda _, context: None)
    policy = AdmissionPolicy(ttft_target_ms=1_000)
    moved = context_of("acme", policy, inference_request("other", reserved_tokens=99))
    meter.served = Target(moved, quota_plan(moved.grant, "other"), b"", None, b"")
    settlement.close(Usage(11, 0, 3, UsageSource.ENGINE), Outcome.COMPLETED)
    assert charged(desk) == 14
    assert "other" not in desk.turnstile.queues


async def test_what_is_withdrawn_has_had_no_turn(desk: SettlementDesk) -> None:
    settlement = settlement_at(desk, Meter())
    assert charged(desk) == 100
    settlement.withdraw()
    assert charged(desk) == 0
    assert desk.spool.next_seq == 1, "no event"
