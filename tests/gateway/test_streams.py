"""What a streaming client sees, and what is metered of it."""

import asyncio
import json

import pytest

from contracts.usage import Outcome, UsageSource
from tests.gateway.conftest import Tenant
from tests.gateway.http_client import chat, get, request_bytes
from tests.gateway.upstream_server import CACHED_TOKENS, PROMPT_TOKENS, Generation, Upstream


async def test_a_stream_is_relayed_settled_and_recorded(tenant: Tenant) -> None:
    reply = await tenant.chat(chat(stream=True))
    assert reply.status == 200
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert [json.loads(p)["choices"][0]["delta"]["content"] for p in reply.payloads[:-1]] == [
        "word "
    ] * 3
    assert reply.payloads[-1] == "[DONE]"
    event = tenant.only_event()
    assert event.outcome is Outcome.COMPLETED
    assert event.usage_source is UsageSource.ENGINE
    assert event.input_uncached_tokens == PROMPT_TOKENS - CACHED_TOKENS
    assert event.input_cache_read_tokens == CACHED_TOKENS
    assert event.output_text_tokens == 3
    assert event.is_stream
    assert event.ttft_ms is not None
    assert event.request_id == reply.headers["x-request-id"]
    assert event.replica == "replica-0"


async def test_a_document_is_relayed_settled_and_recorded(tenant: Tenant) -> None:
    reply = await tenant.chat(chat())
    assert reply.status == 200
    assert reply.document["usage"]["completion_tokens"] == 3
    event = tenant.only_event()
    assert event.total_tokens == PROMPT_TOKENS + 3
    assert not event.is_stream


@pytest.mark.parametrize(
    ("options", "is_shown"),
    [
        ({"include_usage": True}, True),
        ({"include_usage": False}, False),
        ({}, False),
        (None, False),
    ],
    ids=["asked", "declined", "empty", "null"],
)
async def test_the_usage_chunk_is_shown_to_whom_asked(
    tenant: Tenant, options: object, is_shown: bool
) -> None:
    reply = await tenant.chat(chat(stream=True, stream_options=options))
    usages = [json.loads(p).get("usage") for p in reply.payloads[:-1]]
    assert [u for u in usages if u] == (
        [
            {
                "prompt_tokens": PROMPT_TOKENS,
                "completion_tokens": 3,
                "total_tokens": PROMPT_TOKENS + 3,
                "prompt_tokens_details": {"cached_tokens": CACHED_TOKENS},
            }
        ]
        if is_shown
        else []
    )
    assert tenant.only_event().output_text_tokens == 3


async def stream_with_running_usage(generation: Generation) -> None:
    """As vLLM does with continuous_usage_stats: text and usage in one chunk."""
    await generation.start_stream()
    for _ in range(4):
        generation.completion_tokens += 1
        choice = {"index": 0, "delta": {"content": "w"}}
        await generation.event({"choices": [choice], "usage": generation.usage})
    await generation.chunk(b"data: [DONE]\n\n")
    await generation.send(b"0\r\n\r\n")


async def test_the_last_usage_wins_and_no_text_is_dropped(
    tenant: Tenant, upstream: Upstream
) -> None:
    upstream.behaviour = stream_with_running_usage
    reply = await tenant.chat(chat(stream=True))
    assert len(reply.payloads) == 5
    assert tenant.only_event().output_text_tokens == 4


def stream_of(raw: bytes, chunk_bytes: int) -> object:
    async def behave(generation: Generation) -> None:
        await generation.start_stream()
        for start in range(0, len(raw), chunk_bytes):
            await generation.chunk(raw[start : start + chunk_bytes])
        await generation.send(b"0\r\n\r\n")

    return behave


USAGE = b'{"choices":[],"usage":{"prompt_tokens":2,"completion_tokens":9}}'


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"], ids=["lf", "crlf", "cr"])
@pytest.mark.parametrize("chunk_bytes", [1, 7, 10_000])
async def test_every_framing_is_understood(
    tenant: Tenant, upstream: Upstream, line_end: bytes, chunk_bytes: int
) -> None:
    text = 'data:{"choices":[{"delta":{"content":"中\u2028文"}}]}'.encode()
    events = [b": ping", text, b"data: " + USAGE, b"data: [DONE]"]
    raw = b"".join(event + line_end * 2 for event in events)
    upstream.behaviour = stream_of(raw, chunk_bytes)  # type: ignore[assignment]
    reply = await tenant.chat(chat(stream=True))
    assert reply.body == raw.replace(b"data: " + USAGE + line_end * 2, b"")
    event = tenant.only_event()
    assert (event.input_tokens, event.output_text_tokens) == (2, 9)


async def test_a_large_event_passes(tenant: Tenant, upstream: Upstream) -> None:
    text = b"x" * 200_000
    raw = b'data: {"choices":[{"delta":{"content":"%b"}}]}\n\ndata: %b\n\ndata: [DONE]\n\n'
    upstream.behaviour = stream_of(raw % (text, USAGE), 5_000)  # type: ignore[assignment]
    assert text in (await tenant.chat(chat(stream=True))).body
    assert tenant.only_event().output_text_tokens == 9


@pytest.mark.parametrize("is_stream", [True, False], ids=["streamed", "whole"])
async def test_a_count_that_no_request_can_have_is_not_believed(
    tenant: Tenant, upstream: Upstream, is_stream: bool
) -> None:
    """It would fit neither the quota's arithmetic nor the ledger's columns, and block both."""
    usage = b'{"prompt_tokens":2,"completion_tokens":99999999999999999999999}'
    choice = b'[{"index":0,"delta":{"content":"word"},"message":{"content":"word"}}]'
    document = b'{"choices":%b,"usage":%b}' % (choice, usage)

    async def behave(generation: Generation) -> None:
        if not is_stream:
            await generation.answer(200, document)
            return
        await generation.start_stream()
        await generation.chunk(b"data: %b\n\ndata: [DONE]\n\n" % document)
        await generation.send(b"0\r\n\r\n")

    upstream.behaviour = behave
    assert (await tenant.chat(chat(stream=is_stream))).status == 200
    event = tenant.only_event()
    assert event.usage_source is UsageSource.COUNTED
    assert event.output_text_tokens < 100


async def test_a_replica_that_reports_no_usage_is_counted(
    tenant: Tenant, upstream: Upstream
) -> None:
    text = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
    empty = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
    raw = empty + text * 5 + b"data: [DONE]\n\n"
    upstream.behaviour = stream_of(raw, 10_000)  # type: ignore[assignment]
    assert (await tenant.chat(chat(stream=True))).status == 200
    event = tenant.only_event()
    assert event.usage_source is UsageSource.COUNTED
    assert event.output_text_tokens == 5


async def test_an_explicit_zero_is_trusted(tenant: Tenant, upstream: Upstream) -> None:
    raw = b'data: {"choices":[],"usage":{"prompt_tokens":0,"completion_tokens":0}}\n\n'
    upstream.behaviour = stream_of(raw + b"data: [DONE]\n\n", 99)  # type: ignore[assignment]
    assert (await tenant.chat(chat(stream=True))).payloads == ["[DONE]"]
    event = tenant.only_event()
    assert event.total_tokens == 0
    assert event.usage_source is UsageSource.ENGINE


async def test_a_document_in_pieces_is_metered(tenant: Tenant, upstream: Upstream) -> None:
    async def in_pieces(generation: Generation) -> None:
        body = b'{"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 6}}'
        await generation.send(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
        for start in range(0, len(body), 9):
            await generation.chunk(body[start : start + 9])
            await generation.pause(0.001)
        await generation.send(b"0\r\n\r\n")

    upstream.behaviour = in_pieces
    assert (await tenant.chat(chat())).document["usage"]["completion_tokens"] == 6
    assert tenant.only_event().total_tokens == 11


async def test_a_slow_reader_slows_the_replica_down(tenant: Tenant, upstream: Upstream) -> None:
    """Forty megabytes to a client that does not read: the gateway must not hold them."""
    sent = 0
    text = "x" * 100_000

    async def flood(generation: Generation) -> None:
        nonlocal sent
        await generation.start_stream()
        for _ in range(400):
            await generation.word(text)
            sent += 1
        await generation.end_stream()

    upstream.behaviour = flood
    reader, writer = await asyncio.open_connection("127.0.0.1", tenant.gateway.port, limit=2**16)
    writer.write(request_bytes(chat(stream=True), tenant.key))
    await reader.readuntil(b"\r\n\r\n")
    before = -1
    while sent != before:  # until the gateway has time for others and takes nothing more
        before = sent
        for _ in range(50):
            assert (await get(tenant.gateway.port, "/health")).status == 200
    assert sent < 400
    tail = b""
    while b"[DONE]" not in tail:
        tail = tail[-10:] + await reader.read(2**20)
    writer.close()
    await writer.wait_closed()
    assert tenant.only_event().output_text_tokens == 400


async def test_words_that_come_one_by_one_are_passed_on_and_counted_each(
    tenant: Tenant, upstream: Upstream
) -> None:
    texts = ["word ", 'say "', "[DONE]", "usage", "error", "two\nlines"] * 5

    async def behave(generation: Generation) -> None:
        await generation.start_stream()
        for text in texts:
            await generation.word(text)
            await generation.pause(0.002)
        await generation.chunk(b"data: [DONE]\n\n")
        await generation.send(b"0\r\n\r\n")

    upstream.behaviour = behave
    reply = await tenant.chat(chat(stream=True))
    contents = [json.loads(p)["choices"][0]["delta"]["content"] for p in reply.payloads[:-1]]
    assert contents == texts
    event = tenant.only_event()
    assert event.usage_source is UsageSource.COUNTED
    assert event.output_text_tokens == len(texts)
