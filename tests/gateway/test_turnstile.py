"""What waiting costs, and whom: one replica that is told what it has to do, on a clock by hand."""

import asyncio
import dataclasses

import msgspec
import pytest

from contracts.admission import AdmissionPolicy, ServiceClass
from contracts.fallbacks import FallbackChain
from contracts.names import tenant_id
from contracts.policy import TenantPolicy
from gateway.api.context import Operation, RequestContext
from gateway.clock import Clock
from gateway.errors import Overloaded
from gateway.exchange import Exchange
from gateway.metering import Meter
from gateway.request_head import request_head
from gateway.resilience.breaker import Breakers
from gateway.routing.stay import Stay
from gateway.turnstile import Turnstile
from tests.gateway.fleets import LOAD, context_of, fleet_of, inference_request

IN_TURN = AdmissionPolicy(ttft_target_ms=1, max_queue_ms=15_000)


class Gate:
    """A turnstile before a replica that prefills a thousand tokens a second.

    ``outside``: other owners' beside it, with their weights.
    """

    def __init__(self, max_waiting: int = 100, **outside: float) -> None:
        self.now_s = 100.0
        clock = Clock(lambda: self.now_s, lambda: self.now_s)
        self.breakers = Breakers(clock.monotonic_s)
        self.fleet = fleet_of(
            "a",
            clock=clock,
            on_progress=lambda: self.turnstile.look(),
            outside=outside,
            barred=self.breakers.barred,
        )
        self.turnstile = Turnstile(self.fleet, clock, max_waiting=max_waiting, ageing_s=30.0)
        self.fleet.pool["a"].forecast.report(LOAD, self.now_s)

    def is_busy_with(self, num_tokens: int) -> Stay:
        replica = self.fleet.pool["a"]
        visit = replica.forecast.send(float(num_tokens), self.now_s, tells_first_token=True)
        return Stay(replica, num_tokens, num_tokens, visit)

    def is_done_with(self, stay: Stay) -> None:
        self.now_s += 0.1
        self.fleet.end(stay)

    def counter(self, tenant: str) -> int:
        """What the tenant has been charged that other gateways would be told."""
        unshared = self.turnstile.queues["m"].unshared()
        return sum(
            s.num_tokens for share, s in unshared.items() if share.tenant == tenant_id(tenant)
        )


def ask(
    tenant: str,
    *,
    prompt_tokens: int = 100,
    reserved_tokens: int = 900,
    providers: tuple[str, ...] = (),
    policy: AdmissionPolicy = IN_TURN,
) -> RequestContext:
    request = inference_request("m", prompt_tokens=prompt_tokens, reserved_tokens=reserved_tokens)
    request = msgspec.structs.replace(request, providers=providers)
    return context_of(tenant, policy, request)


async def test_who_leaves_while_waiting_has_had_nothing_and_owes_nothing() -> None:
    gate = Gate()
    gate.is_busy_with(100)
    for _ in range(50):
        context, meter = ask("leaver"), Meter()
        turn = gate.turnstile.enter(context, meter, 1)
        assert turn is not None
        gate.turnstile.queues["m"].remove(turn)
        gate.turnstile.settle(context, meter, 0)
    assert gate.counter("leaver") == 0


async def test_who_went_is_charged_what_it_used() -> None:
    gate = Gate()
    context, meter = ask("direct"), Meter()
    assert gate.turnstile.enter(context, meter, 1) is None
    assert gate.counter("direct") == 1_000
    gate.turnstile.settle(context, meter, 130)
    gate.turnstile.settle(context, meter, 130)
    assert gate.counter("direct") == 130


async def test_whose_turn_came_is_charged_what_it_used() -> None:
    gate = Gate()
    stay = gate.is_busy_with(100)
    context, meter = ask("waiter"), Meter()
    assert gate.turnstile.enter(context, meter, 1) is not None
    assert (meter.charged_tokens, gate.counter("waiter")) == (0, 0)
    gate.is_done_with(stay)
    assert (meter.charged_tokens, gate.counter("waiter")) == (1_000, 1_000)
    gate.turnstile.settle(context, meter, 0)
    assert gate.counter("waiter") == 0


async def test_how_long_it_waited_is_on_its_meter() -> None:
    gate = Gate()
    stay = gate.is_busy_with(100)
    context, meter = ask("waiter"), Meter()
    turn = gate.turnstile.enter(context, meter, 1)
    assert turn is not None
    head = request_head(Operation.CHAT_COMPLETIONS, [])
    exchange = Exchange(asyncio.Transport(), head, lambda: None)
    waiting = asyncio.create_task(gate.turnstile.wait(exchange, turn))
    await asyncio.sleep(0)
    gate.is_done_with(stay)
    await waiting
    assert meter.queued_s == pytest.approx(0.1)


async def test_the_wait_is_for_prompts_not_for_what_answers_may_take() -> None:
    """Four prompts of a hundred tokens wait; each may be answered with four thousand."""
    gate = Gate()
    gate.is_busy_with(100)
    for _ in range(4):
        assert gate.turnstile.enter(ask("a", reserved_tokens=4_000), Meter(), 1) is not None
    hurried = AdmissionPolicy(ttft_target_ms=1, max_queue_ms=100)
    late = context_of("a", hurried, ask("a", reserved_tokens=4_000).request)
    with pytest.raises(Overloaded) as refusal:
        gate.turnstile.enter(late, Meter(), 1)
    assert refusal.value.retry_after_ms is not None
    assert refusal.value.retry_after_ms <= 600


async def test_whoever_a_full_queue_drops_is_told_its_own_wait() -> None:
    """Four thousand tokens of its own are before it; before the newcomer there is nothing."""
    gate = Gate(max_waiting=2)
    gate.is_busy_with(100)
    flood = ask("flood", prompt_tokens=4_000)
    dropped = [gate.turnstile.enter(flood, Meter(), number) for number in range(2)]
    newest = dropped[1]
    assert newest is not None
    assert gate.turnstile.enter(ask("quiet"), Meter(), 1) is not None
    failure = newest.holder.called.exception()
    assert isinstance(failure, Overloaded)
    assert failure.retry_after_ms is not None
    assert failure.retry_after_ms > 4_000


async def test_progress_looks_at_who_is_next_and_not_at_everybody() -> None:
    """The deadline has passed, but a replica is free: it goes."""
    gate = Gate()
    stay = gate.is_busy_with(100)
    turn = gate.turnstile.enter(ask("late"), Meter(), 1)
    assert turn is not None
    gate.now_s += 20.0
    gate.is_done_with(stay)
    assert turn.holder.called.is_done
    assert turn.holder.called.exception() is None


BATCH = AdmissionPolicy(
    service_class=ServiceClass.BATCH, ttft_target_ms=1_000_000, max_queue_ms=15_000
)


async def test_batch_overtakes_nobody_whatever_its_own_target_would_allow() -> None:
    """However much who waits has had."""
    gate = Gate()
    assert gate.turnstile.enter(ask("chat"), Meter(), 1) is None
    stay = gate.is_busy_with(100)
    waiting = gate.turnstile.enter(ask("chat"), Meter(), 2)
    batch = gate.turnstile.enter(context_of("batch", BATCH, ask("batch").request), Meter(), 1)
    assert waiting is not None
    assert batch is not None
    assert not batch.holder.called.is_done
    gate.is_done_with(stay)
    assert waiting.holder.called.is_done


async def test_who_may_go_is_not_held_back_by_batch_that_waits() -> None:
    """However little the batch has had: its turn comes when there is room to spare."""
    gate = Gate()
    assert gate.turnstile.enter(ask("chat"), Meter(), 1) is None
    stay = gate.is_busy_with(100)
    slow = AdmissionPolicy(service_class=ServiceClass.BATCH, ttft_target_ms=1, max_queue_ms=15_000)
    batch = gate.turnstile.enter(context_of("batch", slow, ask("batch").request), Meter(), 1)
    assert batch is not None
    impatient = AdmissionPolicy(ttft_target_ms=1_000, max_queue_ms=0)
    chat = context_of("chat", impatient, ask("chat").request)
    assert gate.turnstile.enter(chat, Meter(), 1) is None
    gate.is_done_with(stay)


IN_TIME = AdmissionPolicy(ttft_target_ms=500)
BODY = b'{"messages": [{"role": "user", "content": "as it came"}], "model": "m"}'


def in_time(tenant: str, prompt_tokens: int = 100) -> RequestContext:
    return context_of(tenant, IN_TIME, ask(tenant, prompt_tokens=prompt_tokens).request)


def is_refused_unread(gate: Gate, tenant: str, turn: int, body: bytes = BODY) -> bool:
    try:
        gate.turnstile.check(in_time(tenant).grant, body, turn)
    except Overloaded:
        return True
    return False


def refused_once(gate: Gate, context: RequestContext) -> Overloaded:
    with pytest.raises(Overloaded) as refusal:
        gate.turnstile.enter(context, Meter(), 1)
    return refusal.value


async def test_who_asks_as_was_refused_a_moment_ago_is_refused_unread() -> None:
    gate = Gate()
    gate.is_busy_with(2_000)
    assert not is_refused_unread(gate, "flood", 2)
    refused_once(gate, in_time("flood"))
    assert is_refused_unread(gate, "flood", 2)
    assert not is_refused_unread(gate, "quiet", 2)
    assert not is_refused_unread(gate, "flood", 2, BODY.replace(b'"m"', b'"n"'))
    gate.now_s += 0.06
    assert not is_refused_unread(gate, "flood", 3)


@pytest.mark.parametrize(
    "body",
    [
        b'{"metadata": {"model": "m"}, "model": "idle", "prompt": "x"}',
        b'{"model": "idle", "prompt": "x", "metadata": {"model": "m"}}',
        b'{"prompt": "%b", "model": "idle", "metadata": {"model": "m"}}' % (b"x" * 2_000),
        b'{"metadata": {"of": {}, "model": "m"}, "prompt": "%b", "model": "idle"}' % (b"x" * 2_000),
        b'{"prompt": "%b", "metadata": {"model": "m"}, "model": "idle"}' % (b"x" * 2_000),
        b'{"messages": [{"content": "}"}], "model": "idle", "metadata": {"model": "m"}}',
    ],
)
async def test_a_model_that_is_not_the_requests_own_refuses_nobody(body: bytes) -> None:
    gate = Gate()
    gate.is_busy_with(2_000)
    refused_once(gate, in_time("flood"))
    assert is_refused_unread(gate, "flood", 2)
    assert not is_refused_unread(gate, "flood", 2, body)


@pytest.mark.parametrize(
    "body",
    [
        b'{"messages": [{"content": "}"}], "model": "m", "stream_options": {"a": true}}',
        b'{"metadata": {}, "model": "m", "prompt": "%b"}' % (b"{" * 2_000),
    ],
)
async def test_its_own_is_found_beside_other_objects(body: bytes) -> None:
    gate = Gate()
    gate.is_busy_with(2_000)
    refused_once(gate, in_time("flood"))
    assert is_refused_unread(gate, "flood", 2, body)


async def test_who_is_refused_unread_gets_a_turn_of_its_own() -> None:
    gate = Gate()
    gate.is_busy_with(2_000)
    first_ms = refused_once(gate, in_time("flood")).retry_after_ms
    with pytest.raises(Overloaded) as unread:
        gate.turnstile.check(in_time("flood").grant, BODY, 2)
    told_ms = unread.value.retry_after_ms
    assert told_ms is not None
    assert first_ms is not None
    assert told_ms > first_ms >= 1_500
    gate.now_s += told_ms / 1e3
    gate.is_busy_with(2_000)
    refused_once(gate, in_time("flood"))
    assert not is_refused_unread(gate, "flood", 2)
    assert is_refused_unread(gate, "flood", 3)


async def test_everybody_is_looked_at_once_a_replica_has_got_on() -> None:
    gate = Gate()
    gate.is_busy_with(2_000)
    stay = gate.is_busy_with(100)
    refused_once(gate, in_time("flood"))
    assert is_refused_unread(gate, "flood", 2)
    gate.fleet.end(stay)
    assert not is_refused_unread(gate, "flood", 3)


async def test_a_smaller_prompt_is_looked_at_where_it_might_go() -> None:
    """Late are the long ones only: a prompt of no tokens would be in time."""
    gate = Gate()
    gate.is_busy_with(300)
    refused_once(gate, in_time("flood", prompt_tokens=400))
    assert not is_refused_unread(gate, "flood", 2)


async def test_who_may_be_served_by_another_is_looked_at() -> None:
    gate = Gate()
    gate.is_busy_with(2_000)
    context = in_time("lucky")
    policy = TenantPolicy(
        tenant_id=tenant_id("lucky"), tier="free", fallbacks=(FallbackChain(model="m"),)
    )
    refused_once(
        gate,
        msgspec.structs.replace(context, grant=dataclasses.replace(context.grant, tenant=policy)),
    )
    assert not is_refused_unread(gate, "lucky", 2)


async def test_who_asks_for_an_alias_is_looked_at() -> None:
    """It may stand for several models."""
    gate = Gate()
    gate.is_busy_with(2_000)
    context = in_time("flood")
    request = msgspec.structs.replace(context.request, model_requested="default")
    refused_once(gate, msgspec.structs.replace(context, request=request))
    assert not is_refused_unread(gate, "flood", 2, BODY.replace(b'"m"', b'"default"'))


async def test_a_new_policy_is_looked_at_anew() -> None:
    gate = Gate()
    gate.is_busy_with(2_000)
    refused_once(gate, in_time("flood"))
    grant = in_time("flood").grant
    anew = dataclasses.replace(grant, tenant=msgspec.structs.replace(grant.tenant))
    gate.turnstile.check(anew, BODY, 2)
