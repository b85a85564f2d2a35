"""Limits hold to the token, whoever races, and refusals tell the truth."""

import asyncio
import itertools
import threading
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace

from contracts.quota import QuotaRule
from tests.gateway.conftest import Tenant
from tests.gateway.http_client import Reply, chat, hang_up, request_bytes
from tests.gateway.processes import Gateway, Policies
from tests.gateway.scene import until
from tests.gateway.upstream_server import Upstream, held_words, words
from tests.support.waiting import PATIENCE_S


def counted(max_tokens: int, **members: object) -> dict[str, object]:
    """A request whose prompt is token ids: its cost is known, and not learned."""
    return {"model": "model-a", "prompt": [7] * 20, "max_tokens": max_tokens, **members}


def cost_of(max_completion_tokens: int) -> int:
    """Of ``counted``: its ids, and the token that a model may put in front."""
    return 20 + 1 + max_completion_tokens


async def raced(
    asks: Iterable[Awaitable[Reply]], upstream: Upstream, num_refused: int
) -> list[Reply]:
    """No answer ends, and gives back what it has not used, before so many have been refused."""
    may_end = threading.Event()

    upstream.behaviour = held_words(30, may_end)
    racers = [asyncio.ensure_future(ask) for ask in asks]

    def are_refused() -> bool:
        replies = [racer.result() for racer in racers if racer.done()]
        return sum(reply.status == 429 for reply in replies) >= num_refused

    try:
        await until(are_refused)
    finally:
        may_end.set()
        replies = await asyncio.gather(*racers)
    return replies


async def test_fifty_racers_get_exactly_what_the_bucket_holds(
    make_tenant: Callable[..., Tenant], upstream: Upstream
) -> None:
    cost = cost_of(79)
    tenant = make_tenant(tokens_per_minute=5 * cost + 1)
    await tenant.accepted()
    replies = await raced((tenant.complete(counted(79)) for _ in range(50)), upstream, 45)
    statuses = sorted(reply.status for reply in replies)
    assert statuses == [200] * 5 + [429] * 45
    assert len(tenant.events()) == 5
    assert {e.reserved_tokens for e in tenant.events()} == {cost}


async def test_fifty_racers_on_three_gateways_overshoot_by_nothing(
    make_tenant: Callable[..., Tenant],
    start_gateway: Callable[..., Gateway],
    upstream: Upstream,
) -> None:
    cost = cost_of(79)
    first = make_tenant(tokens_per_minute=6 * cost + 1)
    tenants = [first, *(replace(first, gateway=start_gateway()) for _ in range(2))]
    for tenant in tenants:
        await tenant.accepted()
    askers = itertools.islice(itertools.cycle(tenants), 50)
    replies = await raced((tenant.complete(counted(79)) for tenant in askers), upstream, 44)
    assert sorted(reply.status for reply in replies) == [200] * 6 + [429] * 44
    assert sum(len(tenant.events()) for tenant in tenants) == 6


async def test_a_spent_budget_is_no_rate_limit(
    make_tenant: Callable[..., Tenant], upstream: Upstream
) -> None:
    """OpenAI's clients must not retry it; what can never fit is a 400, and costs nothing."""
    budget = QuotaRule(tokens_per_month=cost_of(100))
    tenant = make_tenant(rules=(budget,))
    await tenant.accepted()
    too_large = await tenant.complete(counted(101))
    assert (too_large.status, too_large.error["code"]) == (400, "tokens_limit_exceeded")
    assert (await tenant.complete(counted(100))).status == 200
    spent = await tenant.complete(counted(100))
    assert (spent.status, spent.error["code"]) == (429, "insufficient_quota")
    assert spent.error["type"] == "insufficient_quota"
    assert "tokens per month" in spent.error["message"]
    assert spent.headers["x-should-retry"] == "false"
    assert int(spent.headers["retry-after"]) > 0
    assert tenant.only_event()


async def test_a_client_that_hangs_up_frees_its_place(
    make_tenant: Callable[..., Tenant], upstream: Upstream
) -> None:
    tenant = make_tenant(rules=(QuotaRule(key_id=None, concurrent_requests=1),))
    await tenant.accepted()
    upstream.behaviour = words(1_000, pause_s=0.01)
    reader, writer = await asyncio.open_connection("127.0.0.1", tenant.gateway.port)
    writer.write(request_bytes(chat(stream=True), tenant.key))
    await reader.readuntil(b"data:")
    refused = await tenant.chat(chat())
    assert (refused.status, refused.error["type"]) == (429, "concurrent_requests")
    await hang_up(writer)
    assert tenant.only_event()
    upstream.behaviour = words(3)
    assert (await tenant.chat(chat())).status == 200


async def test_a_refusal_is_complete_and_consumes_nothing(
    make_tenant: Callable[..., Tenant], upstream: Upstream
) -> None:
    tenant = make_tenant(requests_per_minute=1)
    await tenant.accepted()
    first = await tenant.chat(chat())
    assert first.headers["x-ratelimit-remaining-requests"] == "0"
    refused = [await tenant.chat(chat()) for _ in range(3)]
    for reply in refused:
        assert (reply.status, reply.error["code"]) == (429, "rate_limit_exceeded")
        assert reply.error["type"] == "requests"
        assert reply.error["param"] is None
        assert 1 <= int(reply.headers["retry-after"]) <= 60
        assert reply.headers["x-ratelimit-limit-requests"] == "1"
        assert reply.headers["x-ratelimit-remaining-requests"] == "0"
    waits_ms = [int(reply.headers["retry-after-ms"]) for reply in refused]
    assert waits_ms == sorted(waits_ms, reverse=True), "refusals must not lengthen the wait"
    assert len(upstream.generations) == 1
    assert tenant.valkey.num_open_reservations(tenant.name) == 0
    assert tenant.only_event()


async def test_a_refusal_names_the_limit_what_is_used_and_the_wait(
    make_tenant: Callable[..., Tenant], upstream: Upstream
) -> None:
    tenant = make_tenant(tokens_per_minute=2_000)
    await tenant.accepted()
    replies = await raced((tenant.complete(counted(1_200)) for _ in range(2)), upstream, 1)
    refused = next(reply for reply in replies if reply.status == 429)
    remaining = int(refused.headers["x-ratelimit-remaining-tokens"])
    assert refused.error == {
        "message": f"Rate limit reached for tokens per minute: limit 2000, used {2000 - remaining},"
        f" this request needs {cost_of(1_200)};"
        f" retry in {refused.headers['retry-after']} s.",
        "type": "tokens",
        "param": None,
        "code": "rate_limit_exceeded",
    }


async def test_every_choice_is_reserved_and_counted_once(
    tenant: Tenant, upstream: Upstream
) -> None:
    assert (await tenant.complete(counted(50, n=3))).status == 200
    assert upstream.generations[0].received.document["n"] == 3
    event = tenant.only_event()
    assert event.reserved_tokens == cost_of(3 * 50)
    assert event.output_text_tokens == upstream.generations[0].completion_tokens


async def test_waiting_as_told_is_enough(
    make_tenant: Callable[..., Tenant], upstream: Upstream
) -> None:
    tenant = make_tenant(requests_per_minute=40)
    await tenant.accepted()
    refused: list[Reply] = []
    while not refused:
        replies = await asyncio.gather(*(tenant.chat(chat()) for _ in range(50)))
        refused = [reply for reply in replies if reply.status == 429]
    wait_ms = max(int(reply.headers["retry-after-ms"]) for reply in refused)
    assert {int(reply.headers["retry-after"]) for reply in refused} <= {1, 2}
    await asyncio.sleep(wait_ms / 1000)
    assert (await tenant.chat(chat())).status == 200


async def test_settled_tokens_come_back(
    make_tenant: Callable[..., Tenant], upstream: Upstream
) -> None:
    tenant = make_tenant(tokens_per_minute=1_100)
    await tenant.accepted()
    for _ in range(4):  # each reserves over a thousand and uses fourteen
        assert (await tenant.chat(chat(max_tokens=1_000))).status == 200


async def test_headers_show_what_is_left(
    make_tenant: Callable[..., Tenant], upstream: Upstream
) -> None:
    tenant = make_tenant(tokens_per_minute=60_000, requests_per_minute=60)
    await tenant.accepted()
    begun_monotonic_s = time.monotonic()
    headers = (await tenant.complete(counted(1_000))).headers
    assert headers["x-ratelimit-limit-tokens"] == "60000"
    assert int(headers["x-ratelimit-remaining-tokens"]) == 60_000 - cost_of(1_000)
    assert headers["x-ratelimit-reset-requests"] == "1s"
    assert headers["x-ratelimit-reset-tokens"].endswith("s")
    policy = '"requests";q=60;w=60, "tokens";q=60000;w=60;qu="tokens"'
    assert headers["ratelimit-policy"] == policy
    tokens_left = 60_000 - cost_of(1_000)
    assert headers["ratelimit"] == f'"requests";r=59;t=1, "tokens";r={tokens_left};t=2'
    second = (await tenant.chat(chat(max_tokens=1_000, stream=True))).headers
    refilled = time.monotonic() - begun_monotonic_s  # one in each second
    assert 58 <= int(second["x-ratelimit-remaining-requests"]) <= 58 + refilled


async def test_a_raised_limit_frees_at_once(
    make_tenant: Callable[..., Tenant], policies: Policies, upstream: Upstream
) -> None:
    tenant = make_tenant(requests_per_minute=1)
    await tenant.accepted()
    assert (await tenant.chat(chat())).status == 200
    assert (await tenant.chat(chat())).status == 429
    policies.add(tenant.name, tenant.key, requests_per_minute=3)
    async with asyncio.timeout(PATIENCE_S):
        while (reply := await tenant.chat(chat())).status == 429:
            pass
    assert reply.status == 200
    assert reply.headers["x-ratelimit-remaining-requests"] == "1"


async def test_a_lowered_limit_never_shows_less_than_nothing(
    make_tenant: Callable[..., Tenant], policies: Policies, upstream: Upstream
) -> None:
    tenant = make_tenant(requests_per_minute=100)
    await tenant.accepted()
    for _ in range(10):
        await tenant.chat(chat())
    policies.add(tenant.name, tenant.key, requests_per_minute=2)
    async with asyncio.timeout(PATIENCE_S):
        while (reply := await tenant.chat(chat())).headers["x-ratelimit-limit-requests"] != "2":
            pass
    assert reply.headers["x-ratelimit-remaining-requests"] == "0"
