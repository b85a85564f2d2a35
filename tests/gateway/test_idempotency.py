"""A request that is sent again under its key is answered again, and charged once."""

import asyncio
from collections.abc import Callable

import pytest

from contracts.names import tenant_id
from contracts.usage import Outcome
from gateway.api.context import Operation
from gateway.errors import AnswerNotKept
from gateway.exchange import Exchange
from gateway.request_head import request_head
from gateway.resilience.idempotency import Idempotency, IdempotencyLimits
from gateway.resilience.shared_answer import MAX_KEPT_BYTES, SharedAnswer
from tests.gateway.conftest import Tenant
from tests.gateway.http_client import chat, hang_up, post, read_reply, request_bytes
from tests.gateway.scene import RecordedTransport
from tests.gateway.upstream_server import Generation, Upstream, words
from tests.support.waiting import eventually


@pytest.mark.parametrize("is_stream", [True, False], ids=["stream", "whole"])
async def test_an_answer_is_repeated(tenant: Tenant, upstream: Upstream, is_stream: bool) -> None:
    body = chat(stream=is_stream)
    first = await tenant.chat(body, idempotency_key="k")
    again = await tenant.chat(body, idempotency_key="k")
    assert (first.status, again.status, again.body) == (200, 200, first.body)
    assert len(again.payloads) == (4 if is_stream else 1)
    assert "idempotent-replayed" not in first.headers
    assert again.headers["idempotent-replayed"] == "true"
    assert again.headers["x-request-id"] == first.headers["x-request-id"]
    assert len(upstream.generations) == 1
    assert tenant.only_event().outcome is Outcome.COMPLETED


@pytest.mark.parametrize("is_stream", [True, False], ids=["stream", "whole"])
async def test_all_who_ask_meanwhile_get_the_one_answer(
    tenant: Tenant, upstream: Upstream, is_stream: bool
) -> None:
    upstream.behaviour = words(10, pause_s=0.02)
    replies = await asyncio.gather(
        *(tenant.chat(chat(stream=is_stream), idempotency_key="k") for _ in range(8))
    )
    assert {reply.status for reply in replies} == {200}
    assert len({reply.body for reply in replies}) == 1
    assert sum("idempotent-replayed" in reply.headers for reply in replies) == 7
    assert len(upstream.generations) == 1
    assert tenant.only_event().output_text_tokens == 10


async def test_another_body_is_refused(tenant: Tenant, upstream: Upstream) -> None:
    await tenant.chat(chat("one"), idempotency_key="k")
    refused = await tenant.chat(chat("two"), idempotency_key="k")
    assert (refused.status, refused.error["code"]) == (422, "idempotency_key_reused")
    assert len(upstream.generations) == 1
    assert tenant.only_event().outcome is Outcome.COMPLETED


async def test_a_key_is_its_tenants(
    tenant: Tenant, make_tenant: Callable[..., Tenant], upstream: Upstream
) -> None:
    other = make_tenant()
    await other.accepted()
    replies = [await each.chat(chat(), idempotency_key="k") for each in (tenant, other)]
    assert all("idempotent-replayed" not in reply.headers for reply in replies)
    assert len(upstream.generations) == 2


@pytest.mark.parametrize("key", ["", "x" * 256, "white space"])
async def test_a_key_is_visible_ascii(tenant: Tenant, upstream: Upstream, key: str) -> None:
    assert (await tenant.chat(chat(), idempotency_key=key)).status == 400
    assert upstream.generations == []


async def test_a_client_that_left_finds_its_answer(tenant: Tenant, upstream: Upstream) -> None:
    upstream.behaviour = words(10, pause_s=0.02)
    body = chat(stream=True)
    reader, writer = await asyncio.open_connection("127.0.0.1", tenant.gateway.port)
    writer.write(request_bytes(body, tenant.key, idempotency_key="k"))
    await reader.readuntil(b"word")
    await hang_up(writer)
    again = await tenant.chat(body, idempotency_key="k")
    assert len(again.payloads) == 11
    assert len(upstream.generations) == 1
    assert upstream.aborted == []
    event = tenant.only_event()
    assert (event.outcome, event.output_text_tokens) == (Outcome.COMPLETED, 10)


async def test_what_failed_may_be_tried_again(tenant: Tenant, upstream: Upstream) -> None:
    async def refuse(generation: Generation) -> None:
        await generation.answer(400, b'{"error": {"message": "no"}}')

    upstream.behaviour = refuse
    assert (await tenant.chat(chat(), idempotency_key="k")).status == 400
    upstream.behaviour = words(3)
    assert (await tenant.chat(chat(), idempotency_key="k")).status == 200


async def test_a_repeated_answer_costs_no_request(
    make_tenant: Callable[..., Tenant], upstream: Upstream
) -> None:
    tenant = make_tenant(requests_per_minute=10)
    await tenant.accepted()
    for _ in range(12):
        assert (await tenant.chat(chat(), idempotency_key="k")).status == 200
    assert tenant.num_requests_left() == 9
    assert len(upstream.generations) == 1


async def test_without_a_key_nothing_is_shared(tenant: Tenant, upstream: Upstream) -> None:
    for _ in range(2):
        assert (await post(tenant.gateway.port, chat(), tenant.key)).status == 200
    assert len(upstream.generations) == 2
    eventually(lambda: len(tenant.events()) == 2, "two events")


async def test_pipelined_requests_stay_in_turn(tenant: Tenant, upstream: Upstream) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", tenant.gateway.port)
    request = request_bytes(chat(), tenant.key, idempotency_key="k")
    writer.write(request * 3)
    replies = [await read_reply(reader) for _ in range(3)]
    assert {reply.status for reply in replies} == {200}
    assert len(upstream.generations) == 1
    await hang_up(writer)


# What is kept


OWNER = tenant_id("t"), "key-1"
DIGEST = b"d" * 16


class Seconds:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def kept(seconds: Seconds, **limits: float) -> Idempotency:
    usual: dict[str, float] = {
        "kept_s": 60.0,
        "max_kept": 100,
        "max_kept_bytes": 10_000,
        "answer_timeout_s": 60.0,
    }
    return Idempotency(IdempotencyLimits(**(usual | limits)), seconds)  # type: ignore[arg-type]


def exchange() -> Exchange:
    head = request_head(Operation.COMPLETIONS, [])
    return Exchange(RecordedTransport(), head, on_complete=lambda: None)


def answer(idempotency: Idempotency, key: bytes, body: bytes) -> None:
    idempotency.begin(OWNER, key, DIGEST, exchange()).send(200, b"", body)


async def test_answers_are_kept_for_a_while_and_within_bounds() -> None:
    seconds = Seconds()
    idempotency = kept(seconds, max_kept=3, max_kept_bytes=250)

    def known() -> list[int]:
        return [n for n in range(9) if idempotency.find(OWNER, b"%d" % n, DIGEST) is not None]

    for number in range(5):
        answer(idempotency, b"%d" % number, b"x")
        seconds.now_s += 1.0
    assert known() == [2, 3, 4]
    answer(idempotency, b"5", b"x" * 249)
    assert known() == [4, 5]
    seconds.now_s += 59.5
    assert known() == [5]
    seconds.now_s += 2.0
    assert known() == []


async def test_an_answer_that_is_too_large_is_said_to_be() -> None:
    idempotency = kept(Seconds())
    answer(idempotency, b"k", b"x" * (MAX_KEPT_BYTES + 1))
    with pytest.raises(AnswerNotKept):
        idempotency.find(OWNER, b"k", DIGEST)


async def test_another_key_of_the_tenant_may_not_ask_for_the_same() -> None:
    idempotency = kept(Seconds())
    answer(idempotency, b"k", b"x")
    assert idempotency.find((OWNER[0], "key-2"), b"k", DIGEST) is None


async def test_an_answer_is_repeated_a_hundred_times() -> None:
    idempotency = kept(Seconds())
    answer(idempotency, b"k", b"x")
    for _ in range(100):
        assert idempotency.find(OWNER, b"k", DIGEST) is not None
    with pytest.raises(AnswerNotKept):
        idempotency.find(OWNER, b"k", DIGEST)


async def test_an_answer_of_nothing_is_repeated_too() -> None:
    idempotency = kept(Seconds())
    empty = idempotency.begin(OWNER, b"k", DIGEST, exchange())
    first, late = exchange(), exchange()
    empty.join(first, b"")
    empty.send(200, b"", b"")
    empty.join(late, b"")
    assert late.response_complete


# Who reads


def streaming() -> tuple[SharedAnswer, list[Exchange]]:
    first = exchange()
    shared = SharedAnswer(first, lambda _: None, outlives_readers=True)
    readers = [first, exchange()]
    for reader in readers:
        shared.join(reader, b"")
    shared.start_stream(b"", b"data: 1\n\n")
    return shared, readers


async def test_a_shared_answer_is_as_fast_as_its_fastest_reader() -> None:
    shared, (slow, fast) = streaming()
    slow.is_write_paused = True
    assert not shared.is_write_paused
    fast.is_write_paused = True
    assert shared.is_write_paused
    waiting = asyncio.ensure_future(shared.wait_writable())
    await asyncio.sleep(0)
    assert not waiting.done()
    fast.resume_writing()
    await waiting
    assert not shared.is_write_paused


async def test_nobody_waits_for_a_reader_that_left() -> None:
    shared, (slow, fast) = streaming()
    slow.is_write_paused = fast.is_write_paused = True
    waiting = asyncio.ensure_future(shared.wait_writable())
    await asyncio.sleep(0)
    shared.leave(slow)
    shared.leave(fast)
    await waiting


async def test_a_reader_that_is_far_behind_is_left_behind() -> None:
    shared, (slow, _) = streaming()
    transport = slow._transport
    assert isinstance(transport, RecordedTransport)
    slow.is_write_paused = True
    shared.write_stream(b"x")
    assert not transport.is_closed
    transport.num_unsent_bytes = MAX_KEPT_BYTES + 1
    shared.write_stream(b"x")
    assert transport.is_closed
