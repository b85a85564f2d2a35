"""Clients that would have the gateway keep more than it should, for longer than it should."""

import asyncio
import json
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from contracts.usage import Outcome, UsageSource
from tests.gateway.conftest import Tenant
from tests.gateway.http_client import chat, hang_up, read_reply, request_bytes, send
from tests.gateway.processes import Gateway
from tests.gateway.upstream_server import Generation, Upstream, words
from tests.support.waiting import eventually

CHUNKED_HEAD = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\ntransfer-encoding: chunked\r\n\r\n"
)
TCP_CLOSE = 7  # of Linux' include/net/tcp_states.h
HEALTH = b"GET /health HTTP/1.1\r\nhost: g\r\n\r\n"


async def endless_words(generation: Generation) -> None:
    await generation.start_stream()
    while not generation.is_stopped.is_set():
        await generation.word("word " * 1_000)


async def test_a_client_that_takes_nothing_for_too_long_counts_as_gone(
    start_gateway: Callable[..., Gateway], make_tenant: Callable[..., Tenant], upstream: Upstream
) -> None:
    tenant = make_tenant(on=start_gateway(GATEWAY_WRITE_TIMEOUT_S="0.5"))
    await tenant.accepted()
    upstream.behaviour = endless_words
    _, writer = await asyncio.open_connection("127.0.0.1", tenant.gateway.port, limit=1)
    writer.write(request_bytes(chat(stream=True), tenant.key))
    event = await asyncio.to_thread(tenant.only_event)
    assert event.outcome is Outcome.CLIENT_DISCONNECTED
    await hang_up(writer)


@pytest.fixture
async def hurried(
    start_gateway: Callable[..., Gateway], make_tenant: Callable[..., Tenant], upstream: Upstream
) -> Tenant:
    """A tenant whose gateway has little time for an answer."""
    tenant = make_tenant(on=start_gateway(GATEWAY_ANSWER_TIMEOUT_S="2"))
    await tenant.accepted()
    return tenant


@pytest.mark.parametrize("is_stream", [True, False], ids=["stream", "whole"])
async def test_an_answer_that_takes_too_long_is_ended_and_billed(
    hurried: Tenant, upstream: Upstream, is_stream: bool
) -> None:
    upstream.behaviour = words(5_000, pause_s=0.01)
    reply = await hurried.chat(chat(stream=is_stream))
    error = json.loads(reply.payloads[-1])["error"] if is_stream else reply.error
    assert reply.status == (200 if is_stream else 504)
    assert error["code"] == "answer_timeout"
    event = hurried.only_event()
    assert event.outcome is Outcome.CANCELLED
    assert event.usage_source is UsageSource.ENGINE
    assert event.output_text_tokens == upstream.generations[0].completion_tokens


async def test_a_client_that_hardly_reads_is_let_go_in_the_end(
    hurried: Tenant, upstream: Upstream
) -> None:
    """It takes a byte now and then, so it never counts as gone: nothing else would end this."""
    upstream.behaviour = endless_words
    reader, writer = await asyncio.open_connection("127.0.0.1", hurried.gateway.port, limit=1)
    writer.write(request_bytes(chat(stream=True), hurried.key))
    await reader.read(1)
    event = await asyncio.to_thread(hurried.only_event)
    assert event.outcome is Outcome.CANCELLED
    client = writer.get_extra_info("socket")
    await asyncio.to_thread(eventually, lambda: is_reset(client), "the connection to be reset")
    await hang_up(writer)


def is_reset(connection: socket.socket) -> bool:
    state = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
    return state == TCP_CLOSE


def resident_bytes(gateway: Gateway) -> int:
    assert gateway.process is not None
    status = Path(f"/proc/{gateway.process.pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) * 1024


@pytest.mark.parametrize(
    "request_", [HEALTH, request_bytes(b"{}", None)], ids=["control-plane", "data-plane"]
)
async def test_a_client_that_only_asks_is_not_read_any_more(
    start_gateway: Callable[..., Gateway], request_: bytes
) -> None:
    gateway = start_gateway()
    before_bytes = resident_bytes(gateway)
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port, limit=4096)
    num_requests = 64_000_000 // len(request_)
    writer.write(request_ * num_requests)
    with pytest.raises(TimeoutError):  # the kernel holds a few MB of it, and nobody the rest
        await asyncio.wait_for(writer.drain(), 2)
    assert resident_bytes(gateway) - before_bytes < 50_000_000
    for _ in range(1_000):
        assert (await read_reply(reader)).status in (200, 401)
    await hang_up(writer)


@pytest.mark.parametrize(
    "framing",
    [
        pytest.param(b"2\r\n{}\r\n0\r\n" + b"a: b\r\n" * 100_000, id="trailers"),
        pytest.param(b"2\r\n{}\r\n0\r\na: " + b"b" * 600_000, id="one-trailer"),
        pytest.param(b"2;" + b"a" * 600_000, id="chunk-extension"),
    ],
)
async def test_framing_without_end_is_refused(tenant: Tenant, framing: bytes) -> None:
    reply = await send(tenant.gateway.port, CHUNKED_HEAD + framing)
    assert (reply.status, reply.error["code"]) == (431, "headers_too_large")


async def test_a_trailer_is_no_header(tenant: Tenant) -> None:
    request = CHUNKED_HEAD + b"2\r\n{}\r\n0\r\nauthorization: Bearer %b\r\n\r\n"
    reply = await send(tenant.gateway.port, request % tenant.key.encode())
    assert reply.status == 401


async def test_a_request_for_another_protocol_is_refused_as_such(tenant: Tenant) -> None:
    reply = await tenant.chat(chat(), connection="Upgrade", upgrade="h2c")
    assert reply.status == 400
    assert "Upgrade" in reply.error["message"]


async def test_an_empty_line_does_not_keep_a_connection_open(impatient: Tenant) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", impatient.gateway.port)
    writer.write(HEALTH)
    assert (await read_reply(reader)).status == 200
    writer.write(b"\r\n")
    assert b" 408 " in await reader.read()
    await hang_up(writer)


@pytest.mark.parametrize("depth", [900, 970, 990, 50_000])
async def test_a_nested_body_is_served_or_refused(tenant: Tenant, depth: int) -> None:
    deep = b"[" * depth + b"]" * depth
    for body in (
        b'{"model": "model-a", "messages": [], "x": %b}' % deep,
        b'{"model": "model-a", "messages": %b}' % deep,
        b'{"model": "model-a", "messages": [], "tools": %b}' % deep,
    ):
        assert (await tenant.chat(body)).status in (200, 400)


async def test_a_nested_answer_is_the_replicas_fault(tenant: Tenant, upstream: Upstream) -> None:
    deep = b"[" * 20_000 + b"]" * 20_000

    async def whole(generation: Generation) -> None:
        await generation.answer(400, b'{"error": %b}' % deep)

    async def streamed(generation: Generation) -> None:
        await generation.start_stream()
        await generation.chunk(b'data: {"usage": %b}\n\n' % deep)
        await generation.end_stream()

    upstream.behaviour = whole
    assert (await tenant.chat(chat())).status == 400
    upstream.behaviour = streamed
    assert (await tenant.chat(chat(stream=True))).status == 200
    assert not [line for line in tenant.gateway.log_lines() if line["message"] == "request failed"]


def test_a_nested_policy_leaves_the_last_good_one(
    start_gateway: Callable[..., Gateway], tmp_path: Path
) -> None:
    path = tmp_path / "policies.json"
    path.write_text('{"type": "policy.document.v1", "version": 1}')
    gateway = start_gateway(policy_file=path)
    path.write_text('{"type": "policy.document.v1", "version": 2, "x": ' + "[" * 100_000)
    refused = "policy refused, keeping the last good one"
    eventually(lambda: any(line["message"] == refused for line in gateway.log_lines()), "refusal")
    assert gateway.process is not None
    assert gateway.process.poll() is None
