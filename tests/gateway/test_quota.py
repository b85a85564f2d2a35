"""Limits hold to the token, whoever races, and refusals tell the truth."""

import asyncio
from collections.abc import Callable

from tests.gateway.conftest import Tenant
from tests.gateway.http_client import chat, post
from tests.gateway.processes import Gateway, Policies
from tests.gateway.upstream_server import Upstream, words


def counted(max_tokens: int, **members: object) -> dict[str, object]:
    """A request whose prompt is token ids: its cost is known, and not learned."""
    return {"model": "model-a", "prompt": [7] * 20, "max_tokens": max_tokens, **members}


def cost_of(max_completion_tokens: int) -> int:
    """Of ``counted``: its ids, and the token that a model may put in front."""
    return 20 + 1 + max_completion_tokens


async def test_fifty_racers_get_exactly_what_the_bucket_holds(
    make_tenant: Callable[..., Tenant], upstream: Upstream
) -> None:
    cost = cost_of(79)
    tenant = make_tenant(tokens_per_minute=5 * cost + cost // 2)
    await tenant.accepted()
    upstream.behaviour = words(30, pause_s=0.01)
    replies = await asyncio.gather(*(tenant.complete(counted(79)) for _ in range(50)))
    statuses = sorted(reply.status for reply in replies)
    assert statuses == [200] * 5 + [429] * 45
    assert len(tenant.events()) == 5
    assert {e.reserved_tokens for e in tenant.events()} == {cost}


async def test_two_gateways_share_one_limit(
    make_tenant: Callable[..., Tenant],
    start_gateway: Callable[..., Gateway],
    upstream: Upstream,
) -> None:
    second = start_gateway()
    tenant = make_tenant(requests_per_minute=6)
    await tenant.accepted()
    await Tenant(tenant.name, tenant.key, second, tenant.valkey).accepted()
    upstream.behaviour = words(20, pause_s=0.01)
    ports = [tenant.gateway.port, second.port] * 15
    replies = await asyncio.gather(*(post(port, chat(), tenant.key) for port in ports))
    assert sorted(reply.status for reply in replies) == [200] * 6 + [429] * 24
    assert len(tenant.events()) + len(second.events(tenant.name)) == 6


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
    upstream.behaviour = words(30, pause_s=0.01)
    replies = await asyncio.gather(*(tenant.complete(counted(1_200)) for _ in range(2)))
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
    tenant = make_tenant(requests_per_minute=300)
    await tenant.accepted()
    replies = await asyncio.gather(*(tenant.chat(chat()) for _ in range(320)))
    refused = next(reply for reply in replies if reply.status == 429)
    assert int(refused.headers["retry-after"]) == 1
    wait_ms = max(int(r.headers["retry-after-ms"]) for r in replies if r.status == 429)
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
    assert second["x-ratelimit-remaining-requests"] == "58"


async def test_a_raised_limit_frees_at_once(
    make_tenant: Callable[..., Tenant], policies: Policies, upstream: Upstream
) -> None:
    tenant = make_tenant(requests_per_minute=1)
    await tenant.accepted()
    assert (await tenant.chat(chat())).status == 200
    assert (await tenant.chat(chat())).status == 429
    policies.add(tenant.name, tenant.key, requests_per_minute=3)
    for _ in range(500):
        reply = await tenant.chat(chat())
        if reply.status == 200:
            break
    assert reply.headers["x-ratelimit-remaining-requests"] == "1"


async def test_a_lowered_limit_never_shows_less_than_nothing(
    make_tenant: Callable[..., Tenant], policies: Policies, upstream: Upstream
) -> None:
    tenant = make_tenant(requests_per_minute=100)
    await tenant.accepted()
    for _ in range(10):
        await tenant.chat(chat())
    policies.add(tenant.name, tenant.key, requests_per_minute=2)
    for _ in range(500):
        reply = await tenant.chat(chat())
        if reply.headers["x-ratelimit-limit-requests"] == "2":
            break
    assert reply.headers["x-ratelimit-remaining-requests"] == "0"
