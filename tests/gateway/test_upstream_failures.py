"""Every way a replica can fail, and what the client, the quota and the ledger see of it."""

import json
from collections.abc import Awaitable, Callable

import pytest

from contracts.usage import Outcome, UsageSource
from tests.gateway.conftest import Tenant
from tests.gateway.http_client import chat
from tests.gateway.processes import Gateway
from tests.gateway.upstream_server import Generation, Upstream, words
from tests.support.waiting import eventually

JSON_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n"


async def die_at_once(generation: Generation) -> None:
    generation.reset()


async def die_after_headers(generation: Generation) -> None:
    await generation.start_stream()
    generation.reset()


async def die_in_the_body(generation: Generation) -> None:
    await generation.send(JSON_HEAD + b'{"choices"')
    generation.reset()


async def not_http(generation: Generation) -> None:
    await generation.send(b"SSH-2.0-OpenSSH_9.6\r\n\r\n")


async def silence(generation: Generation) -> None:
    await generation.is_stopped.wait()


async def silence_after_headers(generation: Generation) -> None:
    await generation.start_stream()
    await generation.is_stopped.wait()


async def both_lengths(generation: Generation) -> None:
    await generation.send(
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n{}"
    )


async def redirect(generation: Generation) -> None:
    await generation.answer(302, b"")


def status(code: int, body: bytes = b"oops") -> Callable[[Generation], Awaitable[None]]:
    async def behave(generation: Generation) -> None:
        await generation.answer(code, body)

    return behave


@pytest.mark.parametrize("is_stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize(
    ("behaviour", "expected"),
    [
        pytest.param(die_at_once, 502, id="reset"),
        pytest.param(die_after_headers, 502, id="reset-after-headers"),
        pytest.param(die_in_the_body, 502, id="reset-in-the-body"),
        pytest.param(not_http, 502, id="not-http"),
        pytest.param(both_lengths, 502, id="both-lengths"),
        pytest.param(redirect, 502, id="redirect"),
        pytest.param(status(204, b""), 502, id="no-content"),
        pytest.param(status(200, b"<html>" * 50), 502, id="html"),
        pytest.param(status(200, b""), 502, id="empty"),
        pytest.param(status(200, b"null"), 502, id="null"),
        pytest.param(status(200, b"[]"), 502, id="list"),
        pytest.param(status(500), 502, id="500"),
        pytest.param(status(429), 502, id="429"),
        pytest.param(status(401), 502, id="401"),
    ],
)
async def test_a_failure_before_the_first_byte_costs_nothing(
    tenant: Tenant,
    upstream: Upstream,
    behaviour: Callable[[Generation], Awaitable[None]],
    expected: int,
    is_stream: bool,
) -> None:
    upstream.behaviour = behaviour
    upstream.knows_abort = False
    await assert_free_failure(tenant, is_stream, expected)


@pytest.mark.parametrize("is_stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("behaviour", [silence, silence_after_headers])
async def test_a_silence_before_the_first_byte_costs_nothing(
    impatient: Tenant,
    upstream: Upstream,
    behaviour: Callable[[Generation], Awaitable[None]],
    is_stream: bool,
) -> None:
    upstream.behaviour = behaviour
    upstream.knows_abort = False
    await assert_free_failure(impatient, is_stream, 504)


async def assert_free_failure(tenant: Tenant, is_stream: bool, status_expected: int) -> None:
    reply = await tenant.chat(chat(stream=is_stream))
    assert reply.status == status_expected
    assert reply.error["type"] == "server_error"
    assert "retry-after" not in reply.headers
    event = tenant.only_event()
    assert event.outcome is Outcome.UPSTREAM_FAILED
    assert event.total_tokens == 0


async def test_a_timeout_bills_what_the_engine_says_it_did(
    impatient: Tenant, upstream: Upstream
) -> None:
    upstream.behaviour = silence
    assert (await impatient.chat(chat())).status == 504
    event = impatient.only_event()
    assert event.usage_source is UsageSource.ENGINE
    assert event.input_tokens == 11
    eventually(lambda: len(upstream.aborted) == 1, "the abort")


@pytest.mark.parametrize(
    ("body", "message", "code"),
    [
        pytest.param(
            b'{"error": {"message": "too long", "type": "t", "param": "messages", "code": "c"}}',
            "too long",
            "c",
            id="openai",
        ),
        pytest.param(b'{"object": "error", "message": "no", "code": 400}', "no", "400", id="old"),
        pytest.param(b"<html>", "The replica refused the request.", None, id="html"),
        pytest.param(b"", "The replica refused the request.", None, id="empty"),
    ],
)
async def test_a_refusal_by_the_replica_is_passed_on(
    tenant: Tenant, upstream: Upstream, body: bytes, message: str, code: str | None
) -> None:
    upstream.behaviour = status(422, body)
    reply = await tenant.chat(chat(stream=True))
    assert reply.status == 422
    assert (reply.error["message"], reply.error["code"]) == (message, code)
    event = tenant.only_event()
    assert (event.outcome, event.total_tokens) == (Outcome.REFUSED, 0)


async def test_an_unheard_of_refusal_is_passed_on_too(tenant: Tenant, upstream: Upstream) -> None:
    upstream.behaviour = status(460, b"{}")
    assert (await tenant.chat(chat())).status == 460


async def die_mid_stream(generation: Generation) -> None:
    await generation.start_stream()
    for _ in range(3):
        await generation.word()
    await generation.pause(0.05)
    generation.reset()


async def stall_mid_stream(generation: Generation) -> None:
    await generation.start_stream()
    for _ in range(3):
        await generation.word()
    await generation.is_stopped.wait()


async def end_without_done(generation: Generation) -> None:
    await generation.start_stream()
    for _ in range(3):
        await generation.word()
    await generation.send(b"0\r\n\r\n")


async def error_mid_stream(generation: Generation) -> None:
    await generation.start_stream()
    for _ in range(3):
        await generation.word()
    await generation.event({"error": {"message": "out of memory", "code": 500}})
    await generation.is_stopped.wait()


@pytest.mark.parametrize("knows_abort", [True, False], ids=["abort", "no-abort"])
@pytest.mark.parametrize(
    "behaviour", [die_mid_stream, stall_mid_stream, end_without_done, error_mid_stream]
)
async def test_a_failure_mid_stream_ends_with_an_error_event(
    tenant: Tenant,
    impatient: Tenant,
    upstream: Upstream,
    behaviour: Callable[[Generation], Awaitable[None]],
    knows_abort: bool,
) -> None:
    upstream.behaviour = behaviour
    upstream.knows_abort = knows_abort
    tenant = impatient if behaviour is stall_mid_stream else tenant
    reply = await tenant.chat(chat(stream=True))
    assert reply.status == 200
    assert len(reply.payloads) == 4
    assert set(json.loads(reply.payloads[-1])) == {"error"}
    assert "[DONE]" not in reply.payloads
    event = tenant.only_event()
    assert event.outcome is Outcome.UPSTREAM_FAILED
    assert event.output_text_tokens == 3
    assert event.usage_source is (UsageSource.ENGINE if knows_abort else UsageSource.COUNTED)


@pytest.mark.parametrize(("code", "expected"), [(400, 400), (500, 502), ("oom", 502), (429, 502)])
async def test_an_error_in_the_first_event_is_a_status(
    tenant: Tenant, upstream: Upstream, code: object, expected: int
) -> None:
    async def error_in_200(generation: Generation) -> None:
        await generation.start_stream()
        await generation.event({"error": {"message": "bad", "type": "x", "code": code}})
        await generation.chunk(b"data: [DONE]\n\n")
        await generation.send(b"0\r\n\r\n")

    upstream.behaviour = error_in_200
    upstream.knows_abort = False
    reply = await tenant.chat(chat(stream=True))
    assert (reply.status, reply.error["message"]) == (expected, "bad")
    event = tenant.only_event()
    outcome = Outcome.REFUSED if expected == 400 else Outcome.UPSTREAM_FAILED
    assert (event.outcome, event.total_tokens) == (outcome, 0)


async def test_the_end_of_a_stream_without_framing_is_its_close(
    tenant: Tenant, upstream: Upstream
) -> None:
    async def http_1_0(generation: Generation) -> None:
        await generation.send(
            b"HTTP/1.0 200 OK\r\ncontent-type: application/json\r\n\r\n"
            b'{"usage": {"prompt_tokens": 1, "completion_tokens": 2}}'
        )
        generation.writer.close()

    upstream.behaviour = http_1_0
    assert (await tenant.chat(chat())).status == 200
    assert tenant.only_event().total_tokens == 3


async def test_an_informational_answer_is_not_the_answer(
    tenant: Tenant, upstream: Upstream
) -> None:
    async def with_103(generation: Generation) -> None:
        await generation.send(b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n")
        await words(2)(generation)

    upstream.behaviour = with_103
    assert (await tenant.chat(chat())).status == 200
    assert tenant.only_event().output_text_tokens == 2


async def test_a_server_without_ready_is_asked_for_health(
    start_gateway: Callable[..., Gateway], make_tenant: Callable[..., Tenant], upstream: Upstream
) -> None:
    upstream.knows_ready = False
    gateway = start_gateway()
    tenant = make_tenant(on=gateway)
    await tenant.accepted()
    assert (await tenant.chat(chat())).status == 200
