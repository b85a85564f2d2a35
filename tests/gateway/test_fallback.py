"""A policy's chain: whoever serves is told, priced and clamped; nothing loops."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import pytest

from contracts.fallbacks import FallbackChain, FallbackStep
from contracts.load import ReplicaLoad
from contracts.response_cache import CachePolicy, HitCharge
from contracts.usage import Outcome, UsageEvent, UsageSource
from gateway.app import Gateway
from gateway.settings import ProviderAddress, ReplicaAddress
from tests.gateway.processes import Policies, Valkey
from tests.gateway.scene import Scene, running
from tests.gateway.test_anthropic import STREAM
from tests.gateway.upstream_server import (
    MODEL,
    PROMPT_TOKENS,
    Behaviour,
    Generation,
    Upstream,
    words,
)

SMALL = FallbackStep(model="small")
OPENAI = FallbackStep(model="gpt", provider="openai")
ANTHROPIC = FallbackStep(model="claude", provider="anthropic")


async def refuse(generation: Generation) -> None:
    await generation.answer(503, b"{}")


async def hang(generation: Generation) -> None:
    await generation.is_stopped.wait()


async def break_down(generation: Generation) -> None:
    await generation.answer(500, b"{}")


async def claude(generation: Generation) -> None:
    if generation.received.document.get("stream"):
        await generation.start_stream()
        await generation.chunk(STREAM)
        await generation.send(b"0\r\n\r\n")
        return
    message = {
        "id": "msg_1",
        "type": "message",
        "model": "claude",
        "content": [{"type": "text", "text": "hello"}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 9, "output_tokens": 2},
    }
    await generation.answer(200, json.dumps(message).encode())


@pytest.fixture(scope="module")
def others() -> Iterator[dict[str, Upstream]]:
    started = {name: Upstream(name) for name in ("small", "openai", "anthropic")}
    for upstream in started.values():
        upstream.start()
    yield started
    for upstream in started.values():
        upstream.stop()


@dataclass(frozen=True)
class Fallen:
    """What became of one request whose own replica is of no use."""

    status: int
    head: str
    body: bytes
    events: list[UsageEvent]

    @property
    def document(self) -> Any:
        return json.loads(self.body)

    @property
    def payloads(self) -> list[str]:
        lines = [line for line in self.body.decode().splitlines() if line.startswith("data: ")]
        return [line.removeprefix("data: ") for line in lines]


Ask = Callable[..., Any]


@dataclass(frozen=True)
class Fall:
    gateway: Gateway
    scene: Scene
    upstream: Upstream
    others: dict[str, Upstream]

    async def ask(self, **members: object) -> Fallen:
        before = len(self.scene.events())
        self.scene.transport.written = b""
        await self.gateway.pipeline.serve(self.scene.exchange(**members))
        head, _, body = self.scene.transport.written.partition(b"\r\n\r\n")
        events = self.scene.events()[before:]
        return Fallen(int(head.split()[1]), head.decode(), body, events)


@pytest.fixture
def falls(
    tmp_path: Path,
    valkey: Valkey,
    policies: Policies,
    upstream: Upstream,
    others: dict[str, Upstream],
) -> Callable[..., Any]:
    """A gateway whose policy has such a chain, before a replica that says it is full."""
    for other in others.values():
        other.reset()
    others["anthropic"].behaviour = claude
    upstream.behaviour = refuse

    @asynccontextmanager
    async def fall(
        *steps: FallbackStep,
        cache: CachePolicy | None = None,
        settings: Mapping[str, Any] = MappingProxyType({"max_retries": 0}),
        **chain: Any,
    ) -> AsyncIterator[Fall]:
        name = f"fall-{abs(hash((tmp_path, steps))) % 10**9}"
        chains = (FallbackChain(model=MODEL, steps=steps, **chain),)
        policies.add(name, f"sk-{name}", fallbacks=chains, cache=cache)
        providers = tuple(
            ProviderAddress(name=api, url=f"{others[api].url}/base", api=api, api_key="sk-theirs")
            for api in ("openai", "anthropic")
        )
        replicas = (
            ReplicaAddress(name="replica-0", url=upstream.url),
            ReplicaAddress(name="small-0", url=others["small"].url),
        )
        async with running(
            tmp_path,
            valkey,
            policies,
            upstream,
            replicas=replicas,
            providers=providers,
            poll_interval_s=0.05,
            cache_url=valkey.url,
            **settings,
        ) as gateway:
            scene = Scene(gateway, tmp_path / "spool", name, valkey)
            await knows(gateway, "small")
            yield Fall(gateway, scene, upstream, others)

    return fall


async def knows(gateway: Gateway, model: str) -> None:
    async with asyncio.timeout(20):
        while model not in gateway.pipeline.ready_models():  # noqa: ASYNC110  # polls, as probes do
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("behaviour", [refuse, break_down])
async def test_a_smaller_model_serves(falls: Callable[..., Any], behaviour: Any) -> None:
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


async def test_its_own_replica_comes_first(falls: Callable[..., Any]) -> None:
    async with falls(SMALL) as fall:
        fall.upstream.behaviour = words(2)
        fallen = await fall.ask()
    assert "x-pandal" not in fallen.head
    assert fallen.events[0].model == MODEL


async def test_what_does_not_fit_is_passed_over_and_what_does_is_cut(
    falls: Callable[..., Any],
) -> None:
    tiny = FallbackStep(model="tiny", max_context_tokens=1)
    cut = FallbackStep(model="small", max_context_tokens=60)
    async with falls(tiny, cut) as fall:
        fallen = await fall.ask(max_tokens=500)
        (received,) = [g.received.document for g in fall.others["small"].generations]
    assert fallen.status == 200
    assert 0 < received["max_tokens"] < 60


async def test_an_openai_provider_serves_and_learns_nothing_of_the_tenant(
    falls: Callable[..., Any],
) -> None:
    async with falls(FallbackStep(model="nobody"), OPENAI) as fall:
        fallen = await fall.ask(stream=True)
        (generation,) = fall.others["openai"].generations
    assert fallen.payloads[-1] == "[DONE]"
    assert "x-pandal-model: openai/gpt\r\n" in fallen.head
    received = generation.received
    assert received.path == "/base/v1/chat/completions"
    assert received.headers["authorization"] == "Bearer sk-theirs"
    assert not [name for name in received.headers if name.startswith("x-")]
    assert "cache_salt" not in received.document
    assert received.document["model"] == "gpt"
    (event,) = fallen.events
    assert (event.model, event.provider) == ("openai/gpt", "openai")
    assert event.usage_source is UsageSource.PROVIDER
    assert event.total_tokens == PROMPT_TOKENS + 3


@pytest.mark.parametrize("is_stream", [True, False], ids=["stream", "whole"])
async def test_anthropic_serves_by_translation(falls: Callable[..., Any], is_stream: bool) -> None:
    async with falls(ANTHROPIC) as fall:
        fallen = await fall.ask(stream=is_stream, max_tokens=5)
        (generation,) = fall.others["anthropic"].generations
    received = generation.received
    assert (received.path, received.headers["x-api-key"]) == ("/base/v1/messages", "sk-theirs")
    assert received.document["max_tokens"] == 5
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


async def test_what_has_no_words_there_goes_to_the_next(falls: Callable[..., Any]) -> None:
    async with falls(ANTHROPIC, OPENAI) as fall:
        fallen = await fall.ask(logprobs=True)
        assert fall.others["anthropic"].generations == []
    assert fallen.events[0].model == "openai/gpt"


async def test_each_step_is_tried_once(falls: Callable[..., Any]) -> None:
    async with falls(SMALL, OPENAI, ANTHROPIC) as fall:
        for other in fall.others.values():
            other.behaviour = break_down
        fallen = await fall.ask()
        assert [len(other.generations) for other in fall.others.values()] == [1, 1, 1]
    assert fallen.status == 502
    (event,) = fallen.events
    assert (event.outcome, event.total_tokens, event.attempt) == (Outcome.UPSTREAM_FAILED, 0, 4)


async def test_a_client_at_fault_is_told_at_once(falls: Callable[..., Any]) -> None:
    async def reject(generation: Generation) -> None:
        await generation.answer(400, b'{"error": {"message": "no"}}')

    async with falls(SMALL) as fall:
        fall.upstream.behaviour = reject
        fallen = await fall.ask()
        assert fall.others["small"].generations == []
    assert fallen.status == 400


async def test_a_stream_that_breaks_is_not_switched(falls: Callable[..., Any]) -> None:
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


async def test_the_last_resort_is_to_wait(falls: Callable[..., Any]) -> None:
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


async def test_without_replicas_a_chain_still_serves(falls: Callable[..., Any]) -> None:
    async with falls(SMALL) as fall:
        fall.upstream.is_ready = False
        async with asyncio.timeout(20):
            while MODEL in fall.gateway.pipeline.ready_models():  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        fallen = await fall.ask()
    assert (fallen.status, fallen.events[0].model) == (200, "small")


async def test_malformed_messages_go_where_they_can_be_judged(falls: Callable[..., Any]) -> None:
    async with falls(ANTHROPIC, OPENAI) as fall:
        fallen = await fall.ask(messages=["hi"])
        assert fall.others["anthropic"].generations == []
    assert (fallen.status, fallen.events[0].model) == (200, "openai/gpt")


async def test_anothers_answer_is_not_kept_for_when_its_own_is_back(
    falls: Callable[..., Any],
) -> None:
    async with falls(SMALL, cache=CachePolicy(hit_charge=HitCharge.FULL)) as fall:
        assert "x-pandal-model: small" in (await fall.ask(temperature=0)).head
        fall.upstream.behaviour = words(2)
        again = await fall.ask(temperature=0)
    assert "x-pandal-cache: miss" in again.head
    assert again.events[0].model == MODEL


LOAD = ReplicaLoad(
    model=MODEL,
    is_ready=True,
    is_draining=False,
    num_running=0,
    num_waiting=0,
    queued_prompt_tokens=0,
    expected_output_tokens=0,
    kv_cache_usage=0.0,
    num_kv_blocks=8,
    block_size=16,
    prefill_tokens_per_s=0.0,
    decode_tokens_per_s=0.0,
)


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
    generation.reset()


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
    falls: Callable[..., Any], upstream: Upstream, refusal: int
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


async def test_a_step_that_takes_nothing_costs_no_retry(falls: Callable[..., Any]) -> None:
    settings = {"max_retries": 2, "head_timeout_s": 0.1, "abort_timeout_s": 0.1}
    async with falls(FallbackStep(model="nobody"), OPENAI, settings=settings) as fall:
        fall.upstream.behaviour = hang
        fallen = await fall.ask()
        assert fall.gateway.pipeline.retries.budget.num_withdrawn == 0
    assert fallen.events[0].model == "openai/gpt"


async def test_after_a_provider_its_own_replica_is_one_again(
    falls: Callable[..., Any], upstream: Upstream
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
