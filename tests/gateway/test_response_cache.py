"""An exact repeat is answered from a store of its own; whatever is wrong with that is a miss."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from contracts.response_cache import CachePolicy, HitCharge, KeptAnswer
from contracts.usage import Outcome
from gateway.api.context import Operation
from gateway.response_cache.cache_key import cache_digest
from tests.gateway.conftest import Tenant
from tests.gateway.http_client import chat, get, hang_up, request_bytes
from tests.gateway.processes import Gateway, Valkey
from tests.gateway.upstream_server import Upstream, held_words, words
from tests.support.waiting import PATIENCE_S, eventually

GREEDY: dict[str, object] = {"temperature": 0}
ON = CachePolicy()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkey]:
    store = Valkey(tmp_path_factory.mktemp("cache"))
    store.start()
    yield store
    store.stop()


@pytest.fixture(scope="module")
def caching(new_gateway: Callable[..., Gateway], store: Valkey) -> Iterator[Gateway]:
    gateway = new_gateway("caching", GATEWAY_CACHE_URL=store.url, GATEWAY_CACHE_CALL_DEADLINE_S="2")
    gateway.start()
    yield gateway
    gateway.stop()


@pytest.fixture
async def cached(
    caching: Gateway, make_tenant: Callable[..., Tenant], upstream: Upstream
) -> Tenant:
    return await tenant_of(caching, make_tenant, ON)


async def tenant_of(
    gateway: Gateway, make_tenant: Callable[..., Tenant], policy: CachePolicy
) -> Tenant:
    tenant = make_tenant(on=gateway, cache=policy)
    await tenant.accepted()
    return tenant


async def kept(store: Valkey, tenant: Tenant, count: int = 1) -> None:
    """Until so many answers are in the store."""

    def are_there() -> bool:
        with store.client as client:
            return len(client.keys(f"{{{tenant.name}}}:answer:*")) == count

    await asyncio.to_thread(eventually, are_there, "the answer in the store")


@pytest.mark.parametrize("is_stream", [True, False], ids=["stream", "whole"])
async def test_a_repeat_is_a_hit(
    cached: Tenant, store: Valkey, upstream: Upstream, is_stream: bool
) -> None:
    body = chat(stream=is_stream, **GREEDY)
    first = await cached.chat(body)
    await kept(store, cached)
    again = await cached.chat(body)
    assert (first.headers["x-pandal-cache"], again.headers["x-pandal-cache"]) == ("miss", "hit")
    assert (again.status, again.body) == (200, first.body)
    assert len(again.payloads) == (4 if is_stream else 1)
    assert again.headers["x-request-id"] != first.headers["x-request-id"]
    assert len(upstream.generations) == 1
    assert cached.only_event().outcome is Outcome.COMPLETED


async def has_adapter(tenant: Tenant, upstream: Upstream) -> None:
    """Until the gateway knows of one."""
    upstream.adapters = ("law",)
    async with asyncio.timeout(PATIENCE_S):
        while b"law" not in (await get(tenant.gateway.port, "/v1/models", tenant.key)).body:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_a_hit_may_be_charged_as_its_answer_was(
    caching: Gateway, store: Valkey, make_tenant: Callable[..., Tenant], upstream: Upstream
) -> None:
    tenant = await tenant_of(caching, make_tenant, CachePolicy(hit_charge=HitCharge.FULL))
    await has_adapter(tenant, upstream)
    for _ in range(3):
        assert (await tenant.chat(chat(**GREEDY) | {"model": "law"})).status == 200
        await kept(store, tenant)
    assert len(upstream.generations) == 1
    eventually(lambda: len(tenant.events()) == 3, "three events")
    events = tenant.events()
    assert len({(e.input_tokens, e.output_text_tokens) for e in events}) == 1
    assert [e.parent_event_id for e in events] == [None, *[events[0].event_id] * 2]
    assert [e.outcome for e in events[1:]] == [Outcome.RESPONSE_CACHE_HIT] * 2
    assert {(e.adapter, e.adapter_of) for e in events} == {("law", "model-a")}
    settled = {"requests": 3, "tokens": sum(e.total_tokens for e in events)}
    eventually(lambda: tenant.valkey.settled(tenant.name) == settled, "the settlements")


@dataclass(frozen=True)
class Joined:
    """A client that has the first word of an answer."""

    begun: bytes
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def whole(self) -> bytes:
        rest = await self.reader.readuntil(b"[DONE]")
        await hang_up(self.writer)
        return self.begun + rest


async def joined(tenant: Tenant, body: dict[str, object]) -> Joined:
    reader, writer = await asyncio.open_connection("127.0.0.1", tenant.gateway.port)
    writer.write(request_bytes(body, tenant.key))
    return Joined(await reader.readuntil(b"word"), reader, writer)


async def test_who_shares_an_answer_may_be_charged_for_it_too(
    caching: Gateway, make_tenant: Callable[..., Tenant], upstream: Upstream
) -> None:
    tenant = await tenant_of(caching, make_tenant, CachePolicy(hit_charge=HitCharge.FULL))
    await has_adapter(tenant, upstream)
    may_end = threading.Event()
    upstream.behaviour = held_words(10, may_end)
    body = chat(stream=True, **GREEDY) | {"model": "law"}
    sharing = [await joined(tenant, body) for _ in range(5)]
    await hang_up(sharing.pop(1).writer)  # one that leaves pays, too
    may_end.set()
    assert [(await each.whole()).count(b"word") for each in sharing] == [10] * 4
    assert len(upstream.generations) == 1
    await asyncio.to_thread(eventually, lambda: len(tenant.events()) == 5, "five events")
    events = tenant.events()
    assert len({(e.input_tokens, e.output_text_tokens) for e in events}) == 1
    assert len({e.event_id for e in events}) == 5
    (made,) = [e.event_id for e in events if e.parent_event_id is None]
    assert {e.parent_event_id for e in events if e.event_id != made} == {made}
    assert {(e.adapter, e.adapter_of) for e in events} == {("law", "model-a")}
    settled = {"requests": 5, "tokens": sum(e.total_tokens for e in events)}
    await asyncio.to_thread(
        eventually, lambda: tenant.valkey.settled(tenant.name) == settled, "the settlements"
    )


async def test_only_what_is_determined_is_repeated(cached: Tenant, upstream: Upstream) -> None:
    for _ in range(2):
        assert "x-pandal-cache" not in (await cached.chat(chat(temperature=0.7))).headers
    assert len(upstream.generations) == 2


async def test_a_request_may_ask_for_it_or_do_without(
    cached: Tenant, store: Valkey, upstream: Upstream
) -> None:
    body = chat(temperature=0.7)
    await cached.chat(body, x_pandal_cache="allow")
    await kept(store, cached)
    assert (await cached.chat(body, x_pandal_cache="allow")).headers["x-pandal-cache"] == "hit"
    assert "x-pandal-cache" not in (await cached.chat(chat(**GREEDY), x_pandal_cache="off")).headers
    assert len(upstream.generations) == 2


async def test_no_tenant_reads_anothers_answers(
    cached: Tenant,
    caching: Gateway,
    store: Valkey,
    make_tenant: Callable[..., Tenant],
    upstream: Upstream,
) -> None:
    other = await tenant_of(caching, make_tenant, ON)
    await cached.chat(chat(**GREEDY))
    await kept(store, cached)
    assert (await other.chat(chat(**GREEDY))).headers["x-pandal-cache"] == "miss"
    assert len(upstream.generations) == 2


async def test_one_of_many_is_made_and_its_client_may_leave(
    cached: Tenant, upstream: Upstream
) -> None:
    may_end = threading.Event()
    upstream.behaviour = held_words(10, may_end)
    body = chat(stream=True, **GREEDY)
    first, *others = [await joined(cached, body) for _ in range(6)]
    assert all(b"x-pandal-cache: shared" in other.begun for other in others)
    await hang_up(first.writer)
    may_end.set()
    assert [(await other.whole()).count(b"word") for other in others] == [10] * 5
    assert len(upstream.generations) == 1
    assert upstream.aborted == []
    assert cached.only_event().output_text_tokens == 10


async def test_when_all_have_left_nobody_is_made_to_answer(
    cached: Tenant, upstream: Upstream
) -> None:
    upstream.behaviour = words(5_000, pause_s=0.01)
    body = chat(stream=True, **GREEDY)
    reader, writer = await asyncio.open_connection("127.0.0.1", cached.gateway.port)
    writer.write(request_bytes(body, cached.key))
    await reader.readuntil(b"word")
    await hang_up(writer)
    await asyncio.to_thread(eventually, lambda: len(upstream.aborted) == 1, "the abort")
    upstream.behaviour = words(3)
    assert (await cached.chat(body)).headers["x-pandal-cache"] == "miss"


async def test_what_failed_is_not_kept(cached: Tenant, upstream: Upstream) -> None:
    from tests.gateway.test_upstream_failures import die_mid_stream

    upstream.behaviour = die_mid_stream
    upstream.knows_abort = False
    body = chat(stream=True, **GREEDY)
    assert "[DONE]" not in (await cached.chat(body)).payloads
    upstream.behaviour = words(3)
    assert (await cached.chat(body)).payloads[-1] == "[DONE]"
    assert len(upstream.generations) == 2


async def test_a_large_answer_is_not_kept(
    caching: Gateway, store: Valkey, make_tenant: Callable[..., Tenant], upstream: Upstream
) -> None:
    tenant = await tenant_of(caching, make_tenant, CachePolicy(max_answer_bytes=10))
    for _ in range(2):
        assert (await tenant.chat(chat(**GREEDY))).headers["x-pandal-cache"] == "miss"
    await kept(store, tenant, 0)


async def test_answers_expire(cached: Tenant, store: Valkey, upstream: Upstream) -> None:
    await cached.chat(chat(**GREEDY))
    await kept(store, cached)
    with store.client as client:
        (name,) = client.keys(f"{{{cached.name}}}:answer:*")
        assert 0 < client.ttl(name) <= ON.ttl_s
        client.set(name, b"not an answer")
    assert (await cached.chat(chat(**GREEDY))).headers["x-pandal-cache"] == "miss"


@asynccontextmanager
async def stopped(store: Valkey) -> AsyncIterator[None]:
    await asyncio.to_thread(store.stop)
    try:
        yield
    finally:
        await asyncio.to_thread(store.start)


async def test_without_its_store_everything_is_a_miss(
    cached: Tenant, store: Valkey, upstream: Upstream
) -> None:
    async with stopped(store):
        for _ in range(2):
            assert (await cached.chat(chat(**GREEDY))).status == 200
    assert len(upstream.generations) == 2


# The key


def digest(
    body: bytes, said: bytes | None = None, secret: bytes = b"s", base: str | None = None
) -> str | None:
    return cache_digest(Operation.CHAT_COMPLETIONS, body, base, ON, said, secret)


def test_order_and_white_space_make_no_difference_but_everything_else_does() -> None:
    body = b'{"model":"m","temperature":0,"messages":[1]}'
    assert digest(body) == digest(b'{"messages": [1], "temperature": 0, "model": "m"}')
    assert digest(body) == digest(b'{"user":"u","model":"m","temperature":0,"messages":[1]}')
    others = [
        digest(b'{"model":"n","temperature":0,"messages":[1]}'),
        digest(b'{"model":"m","temperature":0,"messages":[1],"tools":[]}'),
        digest(b'{"model":"m","temperature":0,"messages":[1],"seed":1}'),
        digest(b'{"model":"m","temperature":0,"messages":[1],"stream":true}'),
        digest(body, secret=b"t"),
        digest(body, base="a"),
        digest(body, base="b"),
        cache_digest(Operation.COMPLETIONS, body, None, ON, None, b"s"),
    ]
    assert len({digest(body), *others}) == 9


@pytest.mark.parametrize(
    ("body", "said", "policy", "is_kept"),
    [
        (b'{"seed":1}', None, ON, True),
        (b'{"top_k":1}', None, ON, True),
        (b"{}", None, ON, False),
        (b"{}", b"allow", ON, True),
        (b'{"seed":1}', b"off", ON, False),
        (b'{"seed":1}', None, CachePolicy(is_opt_in=True), False),
        (b'{"seed":1}', b"allow", CachePolicy(is_opt_in=True), True),
        (b"[]", b"allow", ON, False),
    ],
)
def test_what_may_be_kept(
    body: bytes, said: bytes | None, policy: CachePolicy, is_kept: bool
) -> None:
    found = cache_digest(Operation.COMPLETIONS, body, None, policy, said, b"s")
    assert (found is not None) == is_kept


def test_an_answer_as_it_is_kept_has_its_version() -> None:
    assert KeptAnswer.__struct_config__.tag == "cache.answer.v1"
