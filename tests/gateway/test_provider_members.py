"""Servers of other owners beside our own replicas: balanced, kept away, told nothing of ours."""

import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pydantic import ValidationError

from contracts.hedging import HedgePolicy
from contracts.logs import JsonFormatter
from contracts.usage import UsageSource
from gateway.clock import Clock
from gateway.errors import NoReplicaAvailable
from gateway.provider_wiring import wire_providers
from gateway.routing.ring import ring_point
from gateway.settings import ProviderAddress, Settings
from tests.gateway.beside import Members, busy, members_of
from tests.gateway.falling import KEY, break_down, limited
from tests.gateway.fleets import fleet_of, inference_request
from tests.gateway.processes import PEPPER, Policies, Valkey
from tests.gateway.scene import until
from tests.gateway.upstream_server import MODEL, PROMPT_TOKENS, Generation, Upstream, words


async def refuse_credential(generation: Generation) -> None:
    await generation.answer(401, b'{"error": {"message": "key %b is wrong"}}' % KEY.encode())


async def break_off(generation: Generation) -> None:
    await generation.start_stream()
    await generation.word("hello")
    generation.writer.close()


@pytest.fixture
def members(
    tmp_path: Path,
    valkey: Valkey,
    policies: Policies,
    upstream: Upstream,
    others: dict[str, Upstream],
) -> Members:
    return members_of(tmp_path, valkey, policies, upstream, others)


async def late(generation: Generation) -> None:
    await generation.pause(0.2)
    await words(3)(generation)


@pytest.mark.parametrize("is_stream", [True, False], ids=["stream", "whole"])
async def test_a_provider_takes_what_a_busy_replica_does_not(
    members: Members, is_stream: bool
) -> None:
    async with members() as fall, busy(fall):
        secret = (b"x-team", b"ours"), (b"traceparent", b"00-%032d-%016d-01" % (1, 1))
        await fall.gateway.pipeline.serve(fall.scene.exchange(*secret, stream=is_stream))
        (generation,) = fall.others["openai"].generations
        (event,) = fall.scene.events()
    received = generation.received
    assert received.path == "/base/v1/chat/completions"
    assert received.headers["authorization"] == f"Bearer {KEY}"
    assert not [name for name in received.headers if name.startswith(("x-", "trace"))]
    assert received.document["model"] == "gpt"
    assert "cache_salt" not in received.document
    assert (event.model, event.replica, event.provider) == (MODEL, "openai", "openai")
    assert event.usage_source is UsageSource.PROVIDER
    assert event.total_tokens == PROMPT_TOKENS + 3


async def test_what_a_provider_counts_is_settled(members: Members, valkey: Valkey) -> None:
    async with members() as fall:
        fall.upstream.behaviour = break_down
        fallen = await fall.ask()
        assert fallen.status == 200
        event = await fall.scene.only_event()
    assert (event.provider, event.total_tokens) == ("openai", PROMPT_TOKENS + 3)


async def test_what_is_slow_to_begin_is_not_asked_for_at_who_bills_it(members: Members) -> None:
    async with members(hedging=HedgePolicy(after_ms=1)) as fall:
        fall.upstream.behaviour = late
        fallen = await fall.ask(stream=True)
        assert fall.others["openai"].generations == []
    assert [event.provider for event in fallen.events] == [None]


async def test_an_idle_replica_comes_first_and_its_events_name_no_provider(
    members: Members,
) -> None:
    async with members() as fall:
        for _ in range(3):
            fallen = await fall.ask()
        assert fall.others["openai"].generations == []
    assert [event.provider for event in fallen.events] == [None]


async def test_a_provider_that_limits_is_left_alone_for_as_long_as_it_asks(
    members: Members,
) -> None:
    late_s = 0.0
    clock = Clock(time.time, lambda: time.monotonic() + late_s)
    async with members(clock=clock) as fall, busy(fall):
        provider = fall.others["openai"]
        provider.behaviour = limited
        fall.upstream.behaviour = words(3)
        assert [(await fall.ask()).status for _ in range(3)] == [200, 200, 200]
        assert len(provider.generations) == 1
        late_s += 31.0
        provider.behaviour = words(3)
        assert (await fall.ask()).events[0].provider == "openai"
        assert len(provider.generations) == 2


async def test_a_limit_of_the_only_one_left_is_told_with_its_time(members: Members) -> None:
    now_s = 0.0
    async with members(max_retries=0, clock=Clock(time.time, lambda: now_s)) as fall:
        fall.upstream.behaviour = break_down
        provider = fall.others["openai"]
        provider.behaviour = limited
        pool = fall.gateway.pipeline._stages.fleet.pool
        fall.upstream.is_ready = False
        await until(lambda: not pool["replica-0"].is_ready)
        first = await fall.ask()
        now_s += 10.0
        second = await fall.ask()
    assert (first.status, second.status) == (503, 503)
    assert (first.retry_after_s, second.retry_after_s) == (30, 20)
    assert len(provider.generations) == 1, "asked again before its time"


async def test_a_replica_that_is_full_for_a_moment_is_not_waited_for_as_long_as_a_provider(
    members: Members,
) -> None:
    async def full_once(generation: Generation) -> None:
        if len(fall.upstream.generations) == 1:
            await generation.answer(503, b"{}")
        else:
            await words(3)(generation)

    async with members(max_retries=1) as fall:
        fall.upstream.behaviour = full_once
        fall.others["openai"].behaviour = limited
        fallen = await fall.ask()
    assert fallen.status == 200
    assert fallen.events[0].provider is None


async def test_a_refused_credential_is_nobodys_to_read(
    members: Members, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    async with members() as fall, busy(fall):
        fall.others["openai"].behaviour = refuse_credential
        fall.upstream.behaviour = words(3)
        fallen = [await fall.ask() for _ in range(2)]
        assert len(fall.others["openai"].generations) == 1
    (opened,) = (r for r in caplog.records if r.getMessage() == "breaker opened")
    assert opened.levelname == "WARNING"
    assert '"status":401,"reason":"our credential is refused"' in JsonFormatter("x").format(opened)
    assert [f.status for f in fallen] == [200, 200]
    assert KEY not in str([vars(record) for record in caplog.records])
    assert KEY not in "".join(f.head + f.body.decode() for f in fallen)


@pytest.mark.parametrize("status", [403, 404])
async def test_what_may_be_about_one_prompt_keeps_nobody_else_away(
    members: Members, status: int
) -> None:
    async def refuse_it(generation: Generation) -> None:
        await generation.answer(status, b"{}")

    async with members() as fall, busy(fall):
        provider = fall.others["openai"]
        provider.behaviour = refuse_it
        fall.upstream.behaviour = words(3)
        refused = await fall.ask()
        provider.behaviour = words(3)
        served = await fall.ask()
    assert [f.status for f in (refused, served)] == [200, 200]
    assert [f.events[0].provider for f in (refused, served)] == [None, "openai"]


async def test_one_prompts_refusal_does_not_lengthen_a_limit(members: Members) -> None:
    async def moderate(generation: Generation) -> None:
        await generation.answer(403, b"{}")

    late_s = 0.0
    clock = Clock(time.time, lambda: time.monotonic() + late_s)
    async with members(clock=clock) as fall, busy(fall):
        fall.upstream.behaviour = words(3)
        served = []
        for behaviour in (limited, moderate, words(3)):
            fall.others["openai"].behaviour = behaviour
            served.append(await fall.ask())
            late_s += 31.0 if behaviour is limited else 0.0
    assert [f.status for f in served] == [200, 200, 200]
    assert [f.events[0].provider for f in served] == [None, None, "openai"]


async def test_one_that_cannot_be_reached_is_left_alone(members: Members) -> None:
    async with members(url="http://127.0.0.1:1") as fall, busy(fall):
        fall.upstream.behaviour = words(3)
        first, second = await fall.ask(), await fall.ask()
    assert [f.events[0].provider for f in (first, second)] == [None, None]
    assert [f.events[0].attempt for f in (first, second)] == [2, 1]


@pytest.mark.parametrize("outside", [True, False], ids=["provider", "replica"])
async def test_an_answer_that_breaks_off_is_told_alike_of_all(
    members: Members, outside: bool
) -> None:
    async with members(permitted=("openai",) if outside else ()) as fall:
        if outside:
            fall.upstream.behaviour = break_down
        broken = fall.others["openai"] if outside else fall.upstream
        broken.behaviour = break_off
        fallen = await fall.ask(stream=True)
    assert b"hello" in fallen.body
    assert b"The server broke off the answer." in fallen.body


async def test_only_whom_its_policy_names_gets_a_tenants_requests(members: Members) -> None:
    async with members(permitted=()) as fall:
        fall.upstream.behaviour = break_down
        fallen = await fall.ask()
        assert fall.others["openai"].generations == []
    assert fallen.status == 502


# What it is, without a server


async def test_a_provider_owns_no_prefix_and_is_asked_nothing() -> None:
    fleet = fleet_of("a", "b", outside={"theirs": 1.0})
    assert {fleet.pool.ring.home(ring_point(b"%d" % n)) for n in range(200)} == {"a", "b"}
    assert [replica.name for replica in fleet.pool.replicas()] == ["a", "b"]
    fleet.pool.follow([], ["theirs"])
    assert "theirs" in {endpoint.name for endpoint in fleet.pool.endpoints()}


async def test_where_only_a_provider_is_left_it_serves() -> None:
    fleet = fleet_of(outside={"theirs": 1.0, "others": 1.0})
    request = inference_request("m", prompt_tokens=5_000)
    permitted = msgspec.structs.replace(request, providers=("theirs", "others"))
    assert fleet.choose(permitted, ()).endpoint.name in {"theirs", "others"}
    with pytest.raises(NoReplicaAvailable):
        fleet.choose(request, ())


async def test_what_nobody_may_serve_is_refused_before_anything_is_reserved(
    members: Members, valkey: Valkey
) -> None:
    """Its replica is away, and the tenant's policy names no provider."""
    async with members(permitted=()) as fall:
        pool = fall.gateway.pipeline._stages.fleet.pool
        fall.upstream.is_ready = False
        await until(lambda: not pool["replica-0"].is_ready)
        limiter = fall.gateway.pipeline._stages.limiter
        fallen = await fall.ask()
        assert limiter.num_open_settlements == 0
    assert (fallen.status, fallen.events) == (503, [])
    assert "x-ratelimit" not in fallen.head


async def test_a_light_provider_gets_work_where_much_more_waits_elsewhere() -> None:
    fleet = fleet_of("a", outside={"theirs": 0.1})
    request = inference_request("m", prompt_tokens=100, reserved_tokens=0)
    request = msgspec.structs.replace(request, providers=("theirs",))
    names = []
    for _ in range(27):
        names.append(fleet.choose(request, ()).endpoint.name)
        fleet.begin(fleet.pool[names[-1]], request, 0.0)
    assert names.count("theirs") == 2
    assert names[:9] == ["a"] * 9


async def test_a_slow_provider_counts_as_busy_for_a_minute() -> None:
    now_s = 0.0
    fleet = fleet_of("a", clock=Clock(time.time, lambda: now_s), outside={"theirs": 1.0})
    fleet.pool["a"].prefill_tokens_per_s = 1_000.0
    request = inference_request("m", prompt_tokens=100, reserved_tokens=0, is_stream=True)
    theirs = fleet.pool["theirs"]
    stay = fleet.begin(theirs, request, 0.0)
    now_s = 2.0
    fleet.first_token(stay, now_s)
    fleet.end(stay)
    fleet.pool.refresh()
    assert theirs.endpoint.load_tokens == 2_000
    now_s = 63.0
    fleet.pool.refresh()
    assert theirs.endpoint.load_tokens == 0


def test_what_cannot_be_a_member_is_no_setting(tmp_path: Path) -> None:
    usual: dict[str, Any] = {"name": "x", "url": "https://api.x.com:443"}
    for wrong in (
        {},
        {"api_key": KEY, "api_key_file": tmp_path},
        {"api_key": KEY, "api": "anthropic", "models": {"m": "c"}},
        {"api_key": f"{KEY}\nx-more: 1"},
        {"api_key": f"{KEY}\r"},
        {"api_key": KEY, "weight": 0.0},
        {"api_key": KEY, "weight": float("inf")},
        {"api_key": KEY, "weight": float("nan")},
    ):
        with pytest.raises(ValidationError) as failure:
            ProviderAddress(**usual, **wrong)
        assert KEY not in str(failure.value)
        assert len(wrong) != 2 or "api_key_file" not in wrong or "not both" in str(failure.value)


async def test_a_key_is_read_from_its_file(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("sk-in-a-file\n")
    provider = wire_providers(with_key_file(tmp_path))["x"]
    assert b"authorization: Bearer sk-in-a-file\r\n" in provider.headers
    await provider.replica.client.close()


@pytest.mark.parametrize("held", [b"", b"\n", b"sk-a\r\nx-more: 1", b"sk a", b"sk-\xff"], ids=repr)
async def test_what_is_no_key_is_told_without_its_text(tmp_path: Path, held: bytes) -> None:
    path = tmp_path / "key"
    path.write_bytes(held)
    with pytest.raises(OSError, match="one word of visible ASCII") as failure:
        wire_providers(with_key_file(tmp_path))
    assert failure.value.filename == str(path)
    assert "sk" not in str(failure.value.strerror)


def with_key_file(folder: Path) -> Settings:
    path, url = folder / "key", "https://api.x.com:443/base"
    address = ProviderAddress(name="x", url=url, api_key_file=path)
    return Settings(
        policy_file=folder / "policies.json",
        key_pepper=PEPPER,
        quota_url="redis://localhost:1",
        spool_dir=folder,
        providers=(address,),
    )
