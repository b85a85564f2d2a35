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
from gateway.resilience.shared_answer import MAX_KEPT_BYTES
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
    idempotency.begin(tenant_id("t"), key, exchange()).send(200, b"", body)


async def test_answers_are_kept_for_a_while_and_within_bounds() -> None:
    seconds = Seconds()
    idempotency = kept(seconds, max_kept=3, max_kept_bytes=250)

    def known() -> list[int]:
        return [
            n
            for n in range(9)
            if idempotency.find(tenant_id("t"), b"%d" % n, exchange()) is not None
        ]

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
        idempotency.find(tenant_id("t"), b"k", exchange())
