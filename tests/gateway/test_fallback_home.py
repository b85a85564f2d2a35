"""Its own replica is back: what served in its place has left nothing behind."""

import asyncio
import threading
from typing import Any

import msgspec
import pytest

from contracts.fallbacks import FallbackStep
from contracts.response_cache import CachePolicy, HitCharge
from contracts.usage import UsageSource
from tests.gateway.falling import OPENAI, SMALL, Falls, break_down, knows, refuse
from tests.gateway.fleets import LOAD
from tests.gateway.scene import until
from tests.gateway.upstream_server import (
    MODEL,
    PROMPT_TOKENS,
    Behaviour,
    Generation,
    Upstream,
    words,
)


async def test_anothers_answer_is_not_kept_for_when_its_own_is_back(
    falls: Falls,
) -> None:
    async with falls(SMALL, cache=CachePolicy(hit_charge=HitCharge.FULL)) as fall:
        assert "x-pandal-model: small" in (await fall.ask(temperature=0)).head
        fall.upstream.behaviour = words(2)
        again = await fall.ask(temperature=0)
    assert "x-pandal-cache: miss" in again.head
    assert again.events[0].model == MODEL


async def test_who_shares_what_a_fallbacks_adapter_gave_is_charged_as_for_that(
    falls: Falls,
) -> None:
    may_end = threading.Event()

    async def on_a_word(generation: Generation) -> None:
        while not may_end.is_set():  # noqa: ASYNC110 - set in another thread
            await asyncio.sleep(0.005)
        await words(3)(generation)

    law, charged = FallbackStep(model="law"), CachePolicy(hit_charge=HitCharge.FULL)
    async with falls(law, cache=charged) as fall:
        small, pipeline = fall.others["small"], fall.gateway.pipeline
        small.adapters, small.behaviour = ("law",), on_a_word
        await knows(fall.gateway, "law")
        try:
            pipeline.start(fall.scene.exchange(temperature=0))
            await until(lambda: bool(small.generations))
            pipeline.start(fall.scene.exchange(temperature=0))
            await until(lambda: pipeline._stages.cache.num_shared == 1)
            pipeline._stages.fleet.pool.leave("small-0")  # what runs there goes on
        finally:
            may_end.set()
        await pipeline.until_idle()
        events = fall.scene.events()
    assert len(events) == 2
    assert {(e.model, e.adapter, e.adapter_of) for e in events} == {("law", "law", "small")}
    assert {e.total_tokens for e in events} == {PROMPT_TOKENS + 3}


async def tokens(generation: Generation, *ids: int) -> None:
    """As our own replicas stream them."""
    for number in ids:
        generation.completion_tokens += 1
        await generation.chunk(
            b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"t%d "},"token_ids":[%d],'
            b'"finish_reason":null}],"usage":null}\n\n' % (number, number)
        )


async def two_tokens(generation: Generation) -> None:
    await generation.start_stream()
    await tokens(generation, 1, 2)
    generation.writer.close()  # a reset might overtake them


async def last_token(generation: Generation) -> None:
    await generation.start_stream()
    await tokens(generation, 3)
    usage = generation.usage
    usage["prompt_tokens"] += 2  # as it was given them
    usage["total_tokens"] += 2
    await generation.event({"id": "d", "choices": [], "usage": usage})
    await generation.chunk(b"data: [DONE]\n\n")
    await generation.send(b"0\r\n\r\n")


def breaking(bodies: list[dict[str, Any]], *behaviours: Behaviour) -> Behaviour:
    """One after another, with what each was asked."""
    left = iter(behaviours)

    async def behave(generation: Generation) -> None:
        bodies.append(generation.received.document)
        await next(left)(generation)

    return behave


@pytest.mark.parametrize("refusal", [429, 500, 503])
async def test_a_replica_that_refuses_to_resume_leaves_it_to_the_next(
    falls: Falls, upstream: Upstream, refusal: int
) -> None:
    async def refuse_now(generation: Generation) -> None:
        await generation.answer(refusal, b"{}")

    bodies: list[dict[str, Any]] = []
    upstream.load = msgspec.to_builtins(LOAD)
    async with falls(SMALL) as fall:
        fall.upstream.behaviour = breaking(bodies, two_tokens, refuse_now, last_token)
        fallen = await fall.ask(stream=True)
    assert fallen.payloads[-1] == "[DONE]"
    assert fallen.body.count(b'"t') == 3
    (event,) = fallen.events
    assert (event.input_tokens, event.output_text_tokens) == (PROMPT_TOKENS, 3)


async def test_after_a_provider_its_own_replica_is_one_again(
    falls: Falls, upstream: Upstream
) -> None:
    """And a stream that it breaks off is resumed, and counted as one."""
    bodies: list[dict[str, Any]] = []
    come_back = breaking(bodies, refuse, two_tokens, last_token)
    upstream.load = msgspec.to_builtins(LOAD)
    async with falls(OPENAI, wait_ms=20_000) as fall:
        fall.upstream.behaviour = come_back
        fall.others["openai"].behaviour = break_down
        fallen = await fall.ask(stream=True)
    assert fallen.payloads[-1] == "[DONE]"
    assert fallen.body.count(b'"t') == 3
    assert bodies[2]["resume_tokens"] == [1, 2]
    (event,) = fallen.events
    assert (event.provider, event.replica, event.model) == (None, "replica-0", MODEL)
    assert event.usage_source is UsageSource.ENGINE
    assert (event.input_tokens, event.output_text_tokens) == (PROMPT_TOKENS, 3)
