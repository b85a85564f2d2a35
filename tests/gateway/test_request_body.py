"""What a client may send, and what a replica gets of it."""

import asyncio
import dataclasses
import json
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from contracts.admission import ADMISSION_TIERS, CompletionBound
from contracts.names import tenant_id
from contracts.policy import TIERS, ApiKeyRecord, TenantPolicy
from contracts.replica_api import GATEWAY_OWNED_FIELDS
from gateway.admission.cost import CostModel
from gateway.api.context import InferenceRequest, Operation
from gateway.api.request_body import RequestReader, check_prompt_may_fit, tenant_cache_salt
from gateway.api.schemas import ChatCompletionBody
from gateway.errors import InvalidRequest
from gateway.policies import Grant
from tests.gateway.conftest import Tenant
from tests.gateway.http_client import chat, post, request_bytes, send
from tests.gateway.processes import Gateway
from tests.gateway.upstream_server import Upstream
from tests.support.waiting import PATIENCE_S


@pytest.mark.parametrize(
    ("body", "param"),
    [
        pytest.param(b"not json", None, id="not-json"),
        pytest.param(b"[1]", None, id="not-an-object"),
        pytest.param(b"", None, id="empty"),
        pytest.param(b'{"model": "model-a", "messages": ["\xff"]}', None, id="not-utf8"),
        pytest.param({"messages": []}, "model", id="no-model"),
        pytest.param({"model": 1, "messages": []}, "model", id="model-not-text"),
        pytest.param({"model": "model-a"}, "messages", id="no-messages"),
        pytest.param({"model": "model-a", "messages": "hi"}, "messages", id="messages-not-a-list"),
        pytest.param(chat(max_tokens=0), "max_tokens", id="no-tokens"),
        pytest.param(chat(max_tokens=99_999), "max_tokens", id="too-many-tokens"),
        pytest.param(chat(max_completion_tokens=99_999), "max_completion_tokens", id="too-many"),
        pytest.param(chat(n=0), "n", id="no-choices"),
        pytest.param(chat(priority=-1000), "priority", id="first-in-the-queue"),
        pytest.param(chat(resume_tokens=[1]), "resume_tokens", id="resume"),
        pytest.param(chat(return_token_ids=True), "return_token_ids", id="token-ids"),
        pytest.param(chat(n=10**30), "n", id="absurd-choices"),
        pytest.param(chat(stream="yes"), "stream", id="stream-not-a-flag"),
        pytest.param(chat(stream_options=[]), "stream_options", id="options-not-an-object"),
    ],
)
async def test_a_bad_body_gets_400(tenant: Tenant, body: object, param: str | None) -> None:
    reply = await tenant.chat(body)
    assert reply.status == 400, reply
    assert reply.error["type"] == "invalid_request_error"
    assert reply.error["param"] == param
    assert tenant.events() == []


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=5), st.just("user")),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["role", "content", "x"]), inner, max_size=3),
    ),
    max_leaves=8,
)
MEMBERS = ["messages", "prompt", "stream", "n", "max_tokens", "stream_options", "tools", "best_of"]
bodies = st.one_of(
    st.binary(max_size=60),
    st.dictionaries(st.sampled_from(MEMBERS), json_values, max_size=6).map(
        lambda members: json.dumps({"model": "model-a", "messages": [], "prompt": "", **members})
    ),
)


@dataclass(frozen=True)
class OneModel:
    """Under whatever name; its replicas take priorities."""

    name: str
    takes_priority: bool = True
    plain_names: frozenset[str] = frozenset()

    def own_name(self, model: str) -> str:
        return model

    def resolve(self, model: str, share: Callable[[], float], providers: Collection[str]) -> str:
        return self.name


GRANT = Grant(
    TenantPolicy(tenant_id=tenant_id("acme"), tier="free"),
    ApiKeyRecord(key_id="k", key_hash="h", key_prefix="p"),
    TIERS["free"],
    ADMISSION_TIERS["free"],
    b"s" * 32,
)


def test_an_answer_is_reserved_as_asked_unless_the_policy_allows_debt() -> None:
    costs, body = CostModel(0.95), json.dumps(chat(max_tokens=100)).encode()
    for _ in range(100):
        costs.learn_answer(GRANT.tenant.tenant_id, "model-a", 4, at_most=100)

    def reserved(bound: CompletionBound) -> int:
        policy = replace(GRANT.admission, completion_bound=bound)
        grant = dataclasses.replace(GRANT, admission=policy)
        reader = RequestReader(OneModel("model-a"), costs)
        return reader.read(Operation.CHAT_COMPLETIONS, body, grant)[0].reserved_completion_tokens

    assert reserved(CompletionBound.ASKED) == 100
    assert reserved(CompletionBound.LEARNED) < 10


@given(body=bodies, cut=st.integers(min_value=0, max_value=5), operation=st.sampled_from(Operation))
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # the machine may be busy
def test_any_body_is_a_request_or_a_400(body: bytes | str, cut: int, operation: Operation) -> None:
    raw = body if isinstance(body, bytes) else body.encode()
    try:
        reader = RequestReader(OneModel("model-a"), CostModel(0.95))
        request, body_sent = reader.read(operation, raw[: len(raw) - cut], GRANT)
    except InvalidRequest:
        return
    sent = json.loads(body_sent)
    assert sent["model"] == "model-a"
    assert sent["cache_salt"]
    assert request.estimated_tokens > 0


@given(
    body=st.fixed_dictionaries(
        {"model": st.sampled_from(["model-a", "alias"]), "messages": st.just([{"role": "user"}])},
        optional={
            "max_tokens": st.sampled_from([None, 3]),
            "max_completion_tokens": st.sampled_from([None, 4]),
            "stream": st.sampled_from([None, False, True]),
            "stream_options": st.sampled_from([None, {}, {"x": 1, "include_usage": False}]),
            "cache_salt": st.sampled_from([None, "", "mine"]),
            "seed": json_values,
            "text": st.just('}"model":"model-b"}'),
        },
    ),
    padding=st.sampled_from(["", " ", "\n\t "]),
)
def test_the_replica_gets_the_clients_members_and_ours(body: dict[str, Any], padding: str) -> None:
    raw = f"{padding}{json.dumps(body)}{padding}".encode()
    reader = RequestReader(OneModel("model-a"), CostModel(0.95))
    _, sent = reader.read(Operation.CHAT_COMPLETIONS, raw, GRANT)
    expected = {**body, "model": "model-a", "priority": 1}
    expected["cache_salt"] = tenant_cache_salt(GRANT.salt, body.get("cache_salt"))
    if body.get("max_tokens") is None and body.get("max_completion_tokens") is None:
        expected["max_tokens"] = GRANT.limits.default_completion_tokens
    if body.get("stream"):
        options = body.get("stream_options")
        expected["stream_options"] = {**(options or {}), "include_usage": True}
    assert json.loads(sent) == expected
    names = json.loads(sent, object_pairs_hook=lambda pairs: [name for name, _ in pairs])
    assert len(names) == len(set(names)), "no member stands twice"


def parse_chat(members: str) -> tuple[InferenceRequest, bytes]:
    raw = f'{{"model":"m","messages":[],{members}}}'.encode()
    reader = RequestReader(OneModel("m"), CostModel(0.95))
    return reader.read(Operation.CHAT_COMPLETIONS, raw, GRANT)


def test_a_prompt_far_over_the_cap_is_refused_before_it_is_counted() -> None:
    request, _ = parse_chat('"max_tokens":5')
    cap = GRANT.admission.max_prompt_tokens
    check_prompt_may_fit(replace(request, estimated_prompt_tokens=4 * cap), GRANT)
    with pytest.raises(InvalidRequest, match="at most 8192 tokens"):
        check_prompt_may_fit(replace(request, estimated_prompt_tokens=10 * cap), GRANT)


@pytest.mark.parametrize("name", ["max_tokens", r"max\u005ftokens"])
def test_of_a_member_that_stands_twice_the_last_counts_here_and_there(name: str) -> None:
    request, sent = parse_chat(f'"max_tokens":5,"{name}":9')
    assert request.max_completion_tokens == 9
    assert json.loads(sent)["max_tokens"] == 9


@pytest.mark.parametrize("members", [r'"pri\u006frity":1', '"priority":null,"priority":1'])
def test_what_is_the_gateways_is_found_in_any_spelling(members: str) -> None:
    with pytest.raises(InvalidRequest, match="priority"):
        parse_chat(members)


def test_a_client_sets_nothing_that_is_the_gateways() -> None:
    assert set(ChatCompletionBody.__struct_fields__) >= GATEWAY_OWNED_FIELDS


async def test_an_unknown_model_gets_404(tenant: Tenant) -> None:
    reply = await tenant.chat({**chat(), "model": "model-z"})
    assert (reply.status, reply.error["code"]) == (404, "model_not_found")
    assert reply.error["param"] == "model"


async def test_an_alias_names_a_model(tenant: Tenant, upstream: Upstream) -> None:
    assert (await tenant.chat({**chat(), "model": "default"})).status == 200
    assert upstream.generations[-1].received.document["model"] == "model-a"
    event = tenant.only_event()
    assert (event.model_requested, event.model) == ("default", "model-a")


@pytest.mark.parametrize("header", ["content-length", "chunked"])
async def test_a_body_over_the_limit_gets_413(tenant: Tenant, header: str) -> None:
    body = b"x" * 300_000
    if header == "chunked":
        request = request_bytes(b"", tenant.key).replace(
            b"content-length: 0", b"transfer-encoding: chunked"
        ) + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    else:
        request = request_bytes(b"", tenant.key).replace(b"length: 0", b"length: %d" % len(body))
    reply = await send(tenant.gateway.port, request)
    assert (reply.status, reply.error["code"]) == (413, "request_too_large")
    assert reply.headers["connection"] == "close"


async def test_the_replica_gets_limits_usage_and_a_salt(tenant: Tenant, upstream: Upstream) -> None:
    await tenant.chat(chat(temperature=0.5, stream=True, tools=[{"type": "function"}]))
    body = upstream.generations[-1].received.document
    assert body["max_tokens"] == 1_024  # the tier's default
    assert body["stream_options"] == {"include_usage": True}
    assert len(body["cache_salt"]) == 32
    assert body["temperature"] == 0.5
    assert body["tools"] == [{"type": "function"}]
    assert body["messages"] == chat()["messages"]


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
async def test_the_clients_own_limit_is_kept(tenant: Tenant, upstream: Upstream, name: str) -> None:
    await tenant.chat(chat(**{name: 5}))
    body = upstream.generations[-1].received.document
    assert {k: v for k, v in body.items() if k.startswith("max_")} == {name: 5}


async def test_a_null_limit_counts_as_none(tenant: Tenant, upstream: Upstream) -> None:
    await tenant.chat(chat(max_tokens=None, stream=None, n=None))
    assert upstream.generations[-1].received.document["max_tokens"] == 1_024


async def test_stream_options_keep_their_other_members(tenant: Tenant, upstream: Upstream) -> None:
    options = {"include_usage": False, "continuous_usage_stats": True}
    await tenant.chat(chat(stream=True, stream_options=options))
    body = upstream.generations[-1].received.document
    assert body["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}


async def test_only_listed_headers_reach_the_replica(tenant: Tenant, upstream: Upstream) -> None:
    await tenant.chat(
        chat(),
        cookie="secret",
        x_goog_api_key="secret",
        x_forwarded_for="1.2.3.4",
        x_request_id="mine",
        traceparent="00-aa-bb-01",
        accept="application/json",
    )
    headers = upstream.generations[-1].received.headers
    assert set(headers) == {
        *("host", "content-type", "content-length", "accept", "traceparent", "x-request-id"),
        *("x-pandal-event-id", "x-pandal-tenant-id"),
    }
    assert headers["x-request-id"].startswith("req_")


async def test_only_our_headers_reach_the_client(tenant: Tenant, upstream: Upstream) -> None:
    async def leak(generation: object) -> None:
        await generation.send(  # type: ignore[attr-defined]
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nset-cookie: internal=1\r\n"
            b'server: replica\r\ncontent-length: 14\r\n\r\n{"choices":[]}'
        )

    upstream.behaviour = leak
    reply = await tenant.chat(chat())
    assert reply.status == 200
    assert not {"set-cookie", "server", "date"} & set(reply.headers)


async def test_salts_differ_between_tenants_and_are_stable(
    tenant: Tenant, make_tenant: Callable[..., Tenant], upstream: Upstream
) -> None:
    other = make_tenant()
    await other.accepted()

    async def salt(of: Tenant, **members: str) -> str:
        await of.chat(chat(**members))
        return str(upstream.generations[-1].received.document["cache_salt"])

    assert await salt(tenant) == await salt(tenant)
    assert await salt(tenant, cache_salt="a") == await salt(tenant, cache_salt="a")
    salts = {
        *(
            await salt(tenant),
            await salt(tenant, cache_salt="a"),
            await salt(tenant, cache_salt=""),
        ),
        *(await salt(other), await salt(other, cache_salt="a")),
    }
    assert len(salts) == 5


async def test_completions_are_served_too(tenant: Tenant, upstream: Upstream) -> None:
    body = {"model": "model-a", "prompt": [[5, 6], [7]], "max_tokens": 7, "best_of": 2}
    request = request_bytes(body, tenant.key, path="/v1/completions?x=1")
    assert (await send(tenant.gateway.port, request)).status == 200
    assert upstream.generations[-1].received.path == "/v1/completions"
    event = tenant.only_event()
    assert event.endpoint == "completions"
    assert event.reserved_tokens == 3 + 1 + 7 * 2 * 2  # token ids, one in front, 4 completions


async def test_a_request_that_no_bucket_can_hold_gets_400(
    make_tenant: Callable[..., Tenant], upstream: Upstream
) -> None:
    tenant = make_tenant(tokens_per_minute=100)
    await tenant.accepted()
    reply = await tenant.chat(chat(max_tokens=200))
    assert (reply.status, reply.error["code"]) == (400, "tokens_limit_exceeded")
    assert "retry-after" not in reply.headers


async def test_a_model_whose_replica_is_away_gets_503(
    start_gateway: Callable[..., Gateway], make_tenant: Callable[..., Tenant], upstream: Upstream
) -> None:
    gateway = start_gateway()
    tenant = make_tenant(on=gateway)
    await tenant.accepted()
    upstream.is_ready = False
    async with asyncio.timeout(PATIENCE_S):
        while (reply := await post(gateway.port, chat(), tenant.key)).status == 200:
            pass
    assert (reply.status, reply.error["code"]) == (503, "server_is_overloaded")
    assert int(reply.headers["retry-after"]) >= 1
