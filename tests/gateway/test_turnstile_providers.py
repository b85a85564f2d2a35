"""Taking turns where some may also go to a server of another owner, and others may not."""

import asyncio

from contracts.admission import AdmissionPolicy
from gateway.api.context import Operation, RequestContext
from gateway.exchange import Exchange
from gateway.metering import Meter
from gateway.request_head import request_head
from gateway.resilience.attempts import Attempts
from gateway.routing.stay import Stay
from tests.gateway.fleets import LOAD
from tests.gateway.test_retries import retries
from tests.gateway.test_turnstile import Gate, ask


async def test_who_waits_for_ours_does_not_hold_up_whose_provider_is_idle() -> None:
    gate = Gate(theirs=1.0)
    stay = gate.is_busy_with(5_000)
    waits = gate.turnstile.enter(ask("a"), Meter(), 1)
    assert waits is not None
    at_once = AdmissionPolicy(ttft_target_ms=1, max_queue_ms=0)
    permitted = ask("b", providers=("theirs",), policy=at_once)
    assert gate.turnstile.enter(permitted, Meter(), 2) is None
    provider = gate.fleet.pool["theirs"]
    provider.forecast.report(LOAD, gate.now_s)
    visit = provider.forecast.send(100.0, gate.now_s, tells_first_token=True)
    later = gate.turnstile.enter(ask("b", providers=("theirs",)), Meter(), 3)
    assert later is not None
    gate.now_s += 0.1
    gate.fleet.end(Stay(provider, 100, 100, visit))
    assert later.holder.called.is_done, "the provider has room again"
    assert not waits.holder.called.is_done
    gate.is_done_with(stay)
    assert waits.holder.called.is_done


async def test_nobody_takes_ours_from_who_waits_for_it() -> None:
    """However short his prompt is."""
    gate = Gate(theirs=1.0)
    gate.is_busy_with(100)
    long = AdmissionPolicy(ttft_target_ms=500, max_queue_ms=15_000)
    assert gate.turnstile.enter(ask("a", prompt_tokens=2_000, policy=long), Meter(), 1) is not None
    provider = gate.fleet.pool["theirs"]
    provider.forecast.report(LOAD, gate.now_s)
    provider.forecast.send(5_000.0, gate.now_s, tells_first_token=True)
    short = ask("b", prompt_tokens=10, providers=("theirs",), policy=long)
    assert gate.fleet.has_room(short.request, 0.5)
    assert gate.turnstile.enter(short, Meter(), 2) is not None


async def test_a_provider_that_takes_no_more_is_no_room() -> None:
    """Its limit is met, so what is let in goes to ours, for which another waits."""
    gate = Gate(theirs=1.0)
    stay = gate.is_busy_with(5_000)
    waits = gate.turnstile.enter(ask("a"), Meter(), 1)
    gate.breakers.turned_away("m", "theirs", None, 429, 600.0)
    permitted = gate.turnstile.enter(ask("b", providers=("theirs",)), Meter(), 2)
    assert waits is not None
    assert permitted is not None
    gate.is_done_with(stay)
    assert waits.holder.called.is_done
    gate.now_s += 601.0
    assert gate.turnstile.enter(ask("c", providers=("theirs",)), Meter(), 3) is None


async def test_where_only_such_a_provider_is_left_nobody_waits_for_it() -> None:
    """Who asks is to be told until when."""
    gate = Gate(theirs=1.0)
    gate.fleet.pool["a"].set_ready(is_ready=False)
    gate.fleet.pool.follow((), ())
    gate.breakers.turned_away("m", "theirs", None, 429, 600.0)
    assert gate.turnstile.enter(ask("b", providers=("theirs",)), Meter(), 2) is None


async def test_whoever_is_let_in_for_a_providers_room_is_not_sent_to_ours() -> None:
    """However much better ours would be for it."""
    gate = Gate(theirs=0.1)
    gate.is_busy_with(100)
    long = AdmissionPolicy(ttft_target_ms=500, max_queue_ms=15_000)
    assert gate.turnstile.enter(ask("a", prompt_tokens=2_000, policy=long), Meter(), 1) is not None
    short, meter = ask("b", prompt_tokens=10, providers=("theirs",), policy=long), Meter()
    assert gate.turnstile.enter(short, meter, 2) is None
    attempts = attempts_of(gate, short, meter)
    assert attempts._choose(set()).endpoint.name == "theirs"
    assert attempts._choose({"theirs"}).endpoint.name == "a", "rather than nobody"


def attempts_of(gate: Gate, context: RequestContext, meter: Meter) -> Attempts:
    exchange = Exchange(asyncio.Transport(), request_head(Operation.COMPLETIONS, []), lambda: None)
    return Attempts(gate.fleet, retries(gate.breakers), exchange, context, meter)
