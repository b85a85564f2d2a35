"""A client that leaves: the replica stops, and exactly what it did is settled and recorded."""

import asyncio
import threading
from collections.abc import Callable

import pytest

from contracts.policy import TIERS
from contracts.usage import Outcome, UsageSource
from tests.gateway.conftest import Tenant
from tests.gateway.http_client import chat, hang_up, request_bytes
from tests.gateway.processes import Gateway
from tests.gateway.upstream_server import PROMPT_TOKENS, Generation, Upstream, words
from tests.support.waiting import eventually


async def leave_after(tenant: Tenant, request: bytes, is_time: Callable[[], bool]) -> None:
    """Sends the request, waits, and is gone without a word."""
    _, writer = await asyncio.open_connection("127.0.0.1", tenant.gateway.port)
    writer.write(request)
    await writer.drain()
    await asyncio.to_thread(eventually, is_time, "the moment to leave")
    await hang_up(writer)


@pytest.mark.parametrize("is_stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("num_tokens", [0, 4], ids=["before-the-first-token", "in-the-middle"])
async def test_the_engines_count_is_billed(
    tenant: Tenant, upstream: Upstream, is_stream: bool, num_tokens: int
) -> None:
    async def slow(generation: Generation) -> None:
        if num_tokens == 0:
            await generation.is_stopped.wait()
            return
        await words(500, pause_s=0.02)(generation)

    def is_time() -> bool:
        return any(g.completion_tokens >= num_tokens for g in upstream.generations)

    upstream.behaviour = slow
    await leave_after(tenant, request_bytes(chat(stream=is_stream), tenant.key), is_time)
    event = tenant.only_event()
    (generation,) = upstream.generations
    assert generation.is_stopped.is_set()
    assert upstream.aborted == [generation.received.headers["x-request-id"]]
    assert event.outcome is Outcome.CLIENT_DISCONNECTED
    assert event.usage_source is UsageSource.ENGINE
    assert event.output_text_tokens == generation.completion_tokens
    assert event.input_tokens == PROMPT_TOKENS


@pytest.mark.parametrize("is_stream", [True, False], ids=["streamed", "whole"])
async def test_a_replica_that_cannot_abort_is_hung_up_on(
    tenant: Tenant, upstream: Upstream, is_stream: bool
) -> None:
    upstream.knows_abort = False
    upstream.behaviour = words(500, pause_s=0.02)

    def is_time() -> bool:
        return any(g.completion_tokens >= 4 for g in upstream.generations)

    await leave_after(tenant, request_bytes(chat(stream=is_stream), tenant.key), is_time)
    event = tenant.only_event()
    assert event.outcome is Outcome.CLIENT_DISCONNECTED
    assert event.usage_source is UsageSource.COUNTED
    estimate = event.reserved_tokens - TIERS["gold"].default_completion_tokens
    assert event.input_tokens == estimate > 0
    assert (event.output_text_tokens > 0) == is_stream
    eventually(lambda: upstream.num_hung_up == 1, "the replica to be hung up on")


async def test_an_answer_that_ended_a_moment_before_is_used(
    tenant: Tenant, upstream: Upstream
) -> None:
    """The usage chunk is on its way, and the replica knows no such request any more."""
    may_end = threading.Event()

    async def behave(generation: Generation) -> None:
        await generation.start_stream()
        await generation.word()
        await asyncio.to_thread(may_end.wait)
        generation.completion_tokens = 77
        await generation.end_stream()

    upstream.behaviour = behave
    upstream.knows_abort = False  # the request has ended: 404
    _, writer = await asyncio.open_connection("127.0.0.1", tenant.gateway.port)
    writer.write(request_bytes(chat(stream=True), tenant.key))
    try:
        await asyncio.to_thread(
            eventually,
            lambda: any(g.completion_tokens for g in upstream.generations),
            "a first word",
        )
        await hang_up(writer)
    finally:
        may_end.set()
    event = tenant.only_event()
    assert event.usage_source is UsageSource.ENGINE
    assert event.output_text_tokens == 77


async def test_an_abort_that_overtakes_its_request_is_sent_again(
    tenant: Tenant, upstream: Upstream
) -> None:
    """The replica does not know the request yet when the first abort comes."""

    async def slow_to_register(generation: Generation) -> None:
        upstream.knows_abort = False
        await generation.pause(0.05)
        upstream.knows_abort = True
        generation.completion_tokens = 1
        await generation.is_stopped.wait()

    upstream.behaviour = slow_to_register
    request = request_bytes(chat(), tenant.key)
    await leave_after(tenant, request, lambda: bool(upstream.generations))
    event = tenant.only_event()
    assert event.usage_source is UsageSource.ENGINE
    assert event.output_text_tokens == 1


async def test_the_count_of_a_busy_engine_is_waited_for(
    start_gateway: Callable[..., Gateway], make_tenant: Callable[..., Tenant], upstream: Upstream
) -> None:
    tenant = make_tenant(on=start_gateway())
    await tenant.accepted()
    upstream.behaviour = words(500, pause_s=0.02)
    upstream.abort_pause_s = 1.0
    request = request_bytes(chat(stream=True), tenant.key)
    await leave_after(tenant, request, lambda: bool(upstream.generations))
    event = tenant.only_event()
    assert event.usage_source is UsageSource.ENGINE
    assert event.output_text_tokens == upstream.generations[0].completion_tokens


@pytest.mark.parametrize("is_stream", [True, False], ids=["streamed", "whole"])
async def test_a_client_that_leaves_with_requests_in_its_pipeline_gets_only_the_first(
    tenant: Tenant, upstream: Upstream, is_stream: bool
) -> None:
    upstream.behaviour = words(500, pause_s=0.02)
    request = request_bytes(chat(stream=is_stream), tenant.key)
    await leave_after(tenant, request * 3, lambda: bool(upstream.generations))
    assert tenant.only_event().outcome is Outcome.CLIENT_DISCONNECTED
    assert len(upstream.generations) == 1


async def test_an_engine_in_a_long_step_is_waited_for(
    start_gateway: Callable[..., Gateway], make_tenant: Callable[..., Tenant], upstream: Upstream
) -> None:
    """Nobody waits for this answer any more: better a late count than a guess."""
    tenant = make_tenant(on=start_gateway(GATEWAY_ABORT_TIMEOUT_S="0.2"))
    await tenant.accepted()
    upstream.abort_pause_s = 1.0  # longer than a client would be kept waiting
    upstream.behaviour = words(500, pause_s=0.02)

    def is_time() -> bool:
        return any(g.completion_tokens >= 4 for g in upstream.generations)

    await leave_after(tenant, request_bytes(chat(stream=True), tenant.key), is_time)
    event = tenant.only_event()
    assert event.usage_source is UsageSource.ENGINE
    assert event.output_text_tokens == upstream.generations[0].completion_tokens
