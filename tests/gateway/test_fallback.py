"""A policy's chain: whoever serves is told, priced and clamped; nothing loops."""

import asyncio
import json
from typing import Any

import pytest

from contracts.fallbacks import FallbackStep
from contracts.usage import Outcome, UsageSource
from tests.gateway.falling import (
    ANTHROPIC,
    KEY,
    OPENAI,
    SMALL,
    Falls,
    break_down,
    hang,
    limited,
    refuse,
)
from tests.gateway.scene import until
from tests.gateway.upstream_server import (
    MODEL,
    PROMPT_TOKENS,
    Generation,
    words,
)
from tests.support.waiting import PATIENCE_S


@pytest.mark.parametrize("behaviour", [refuse, break_down])
async def test_a_smaller_model_serves(falls: Falls, behaviour: Any) -> None:
    async with falls(SMALL) as fall:
        fall.upstream.behaviour = behaviour
        fallen = await fall.ask(max_tokens=7)
    assert fallen.status == 200
    assert "x-pandal-model: small\r\n" in fallen.head
    assert f"x-pandal-fallback-from: {MODEL}" in fallen.head
    (received,) = [g.received.document for g in fall.others["small"].generations]
    assert (received["model"], received["max_tokens"]) == ("small", 7)
    (event,) = fallen.events
    assert (event.model_requested, event.model, event.replica) == (MODEL, "small", "small-0")
    assert (event.outcome, event.total_tokens) == (Outcome.COMPLETED, PROMPT_TOKENS + 3)


async def test_its_own_replica_comes_first(falls: Falls) -> None:
    async with falls(SMALL) as fall:
        fall.upstream.behaviour = words(2)
        fallen = await fall.ask()
    assert "x-pandal" not in fallen.head
    assert fallen.events[0].model == MODEL


async def test_what_does_not_fit_is_passed_over_and_what_does_is_cut(
    falls: Falls,
) -> None:
    tiny = FallbackStep(model="tiny", max_context_tokens=1)
    cut = FallbackStep(model="small", max_context_tokens=60)
    async with falls(tiny, cut) as fall:
        fallen = await fall.ask(max_tokens=500)
        (received,) = [g.received.document for g in fall.others["small"].generations]
    assert fallen.status == 200
    assert 0 < received["max_tokens"] < 60


async def test_an_openai_provider_serves_and_learns_nothing_of_the_tenant(
    falls: Falls,
) -> None:
    async with falls(FallbackStep(model="nobody"), OPENAI) as fall:
        fallen = await fall.ask(stream=True)
        (generation,) = fall.others["openai"].generations
    assert fallen.payloads[-1] == "[DONE]"
    assert "x-pandal-model: openai/gpt\r\n" in fallen.head
    received = generation.received
    assert received.path == "/base/v1/chat/completions"
    assert received.headers["authorization"] == f"Bearer {KEY}"
    assert not [name for name in received.headers if name.startswith("x-")]
    assert "cache_salt" not in received.document
    assert received.document["model"] == "gpt"
    (event,) = fallen.events
    assert (event.model, event.provider) == ("openai/gpt", "openai")
    assert event.usage_source is UsageSource.PROVIDER
    assert event.total_tokens == PROMPT_TOKENS + 3


@pytest.mark.parametrize("is_stream", [True, False], ids=["stream", "whole"])
async def test_anthropic_serves_by_translation(falls: Falls, is_stream: bool) -> None:
    async with falls(ANTHROPIC) as fall:
        fallen = await fall.ask(stream=is_stream, max_tokens=9)
        (generation,) = fall.others["anthropic"].generations
    received = generation.received
    assert (received.path, received.headers["x-api-key"]) == ("/base/v1/messages", KEY)
    assert received.document["max_tokens"] == 9
    (event,) = fallen.events
    assert (event.model, event.provider) == ("anthropic/claude", "anthropic")
    assert event.usage_source is UsageSource.PROVIDER
    if is_stream:
        assert fallen.payloads[-1] == "[DONE]"
        assert all("usage" not in json.loads(p) for p in fallen.payloads[:-1]), "nobody asked"
        assert (event.input_tokens, event.output_text_tokens) == (14, 9)
    else:
        assert fallen.document["model"] == "claude"
        assert fallen.document["choices"][0]["message"]["content"] == "hello"
        assert (event.input_tokens, event.output_text_tokens) == (9, 2)


async def test_what_has_no_words_there_goes_to_the_next(falls: Falls) -> None:
    async with falls(ANTHROPIC, OPENAI) as fall:
        fallen = await fall.ask(logprobs=True)
        assert fall.others["anthropic"].generations == []
    assert fallen.events[0].model == "openai/gpt"


async def test_each_step_is_tried_once(falls: Falls) -> None:
    async with falls(SMALL, OPENAI, ANTHROPIC) as fall:
        for other in fall.others.values():
            other.behaviour = break_down
        fallen = await fall.ask()
        assert [len(other.generations) for other in fall.others.values()] == [1, 1, 1]
    assert fallen.status == 502
    (event,) = fallen.events
    assert (event.outcome, event.total_tokens, event.attempt) == (Outcome.UPSTREAM_FAILED, 0, 4)


async def test_a_client_at_fault_is_told_at_once(falls: Falls) -> None:
    async def reject(generation: Generation) -> None:
        await generation.answer(400, b'{"error": {"message": "no"}}')

    async with falls(SMALL) as fall:
        fall.upstream.behaviour = reject
        fallen = await fall.ask()
        assert fall.others["small"].generations == []
    assert fallen.status == 400


async def test_a_stream_that_breaks_is_not_switched(falls: Falls) -> None:
    async def break_off(generation: Generation) -> None:
        await generation.start_stream()
        await generation.word()
        generation.reset()

    async with falls(SMALL) as fall:
        fall.upstream.behaviour = break_off
        fall.upstream.knows_abort = False
        fallen = await fall.ask(stream=True)
        assert fall.others["small"].generations == []
    assert "error" in json.loads(fallen.payloads[-1])


async def test_the_last_resort_is_to_wait(falls: Falls) -> None:
    async with falls(OPENAI, wait_ms=20_000) as fall:
        fall.others["openai"].behaviour = break_down
        numbers = iter(range(9))

        async def recover(generation: Generation) -> None:
            await (refuse if next(numbers) == 0 else words(2))(generation)

        fall.upstream.behaviour = recover
        fallen = await fall.ask()
    assert fallen.status == 200
    assert "x-pandal" not in fallen.head
    assert fallen.events[0].model == MODEL


async def test_without_replicas_a_chain_still_serves(falls: Falls) -> None:
    async with falls(SMALL) as fall:
        fall.upstream.is_ready = False
        async with asyncio.timeout(PATIENCE_S):
            while MODEL in fall.gateway.pipeline.ready_models():  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        fallen = await fall.ask()
    assert (fallen.status, fallen.events[0].model) == (200, "small")


async def test_malformed_messages_go_where_they_can_be_judged(falls: Falls) -> None:
    async with falls(ANTHROPIC, OPENAI) as fall:
        fallen = await fall.ask(messages=["hi"])
        assert fall.others["anthropic"].generations == []
    assert (fallen.status, fallen.events[0].model) == (200, "openai/gpt")


async def test_a_step_that_takes_nothing_costs_no_retry(falls: Falls) -> None:
    settings = {"max_retries": 2, "head_timeout_s": 2.0, "abort_timeout_s": 0.1}
    async with falls(FallbackStep(model="nobody"), OPENAI, settings=settings) as fall:
        fall.upstream.behaviour = hang
        fallen = await fall.ask()
        assert fall.gateway.pipeline.retries.budget.num_withdrawn == 0, "nothing was sent there"
    assert fallen.events[0].model == "openai/gpt"


async def test_a_step_that_turns_away_is_not_asked_again_before_the_next(falls: Falls) -> None:
    async with falls(OPENAI, ANTHROPIC, settings={"max_retries": 2}) as fall:
        fall.upstream.is_ready = False
        pool = fall.gateway.pipeline._stages.fleet.pool
        await until(lambda: not pool["replica-0"].is_ready)
        fall.others["openai"].behaviour = refuse
        fallen = await fall.ask()
        assert len(fall.others["openai"].generations) == 1
        assert fall.gateway.pipeline.retries.budget.num_withdrawn == 0
    assert fallen.events[0].model == "anthropic/claude"


async def test_a_providers_limit_is_told_with_its_time_also_to_those_who_come_later(
    falls: Falls,
) -> None:
    async with falls(OPENAI) as fall:
        provider = fall.others["openai"]
        provider.behaviour = limited
        first, second = await fall.ask(), await fall.ask()
        assert len(provider.generations) == 1, "asked again before its time"
    assert (first.status, second.status) == (503, 503)
    assert first.retry_after_s == 30
    assert second.retry_after_s is not None
    assert second.retry_after_s > 1, "as if nobody had told a time"
