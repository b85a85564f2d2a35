"""What the alerts are for, caused on real processes: each fires then, and not before.

The expressions are the chart's.  Metrics are scraped from the servers that tell them and put at
times as far apart as the alert's windows ask; the gateway's replica is a stand-in, the engine not.
"""

import asyncio
import re
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from autoscaler.pool import Phase, PoolState, Replica, VariantState
from autoscaler.reconciler import Report
from autoscaler.telemetry import Telemetry, Told
from billing import telemetry as billing_telemetry
from billing.ledger import PostResult
from contracts.metrics import GATEWAY_OUTBOX_BYTES, GATEWAY_TENANT_BUDGET_USED
from contracts.quota import QuotaRule
from tests.autoscaler.pools import Scene
from tests.gateway.conftest import Tenant
from tests.gateway.http_client import chat
from tests.gateway.processes import Gateway
from tests.gateway.upstream_server import Behaviour, Generation, Upstream, words
from tests.replica.replica_process import ReplicaProcess
from tests.support.alerts import HOUR_S, MINUTE_S, Rules, asked, rendered_rules, watch
from tests.support.promql import fires
from tests.support.waiting import eventually

CONTEXT = 4_096
OUTBOX_BYTES = 20_000  # for some twenty events
TTFT_BOUND_S = 2.5  # the chart's


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> Rules:
    room = f"gateway.settings.spoolMaxWaitingBytes={OUTBOX_BYTES}"
    return rendered_rules(tmp_path_factory.mktemp("helm"), "--set", room)


@pytest.fixture(scope="module")
def watched(new_gateway: Callable[..., Gateway]) -> Iterator[Gateway]:
    """Whose tenants are told apart."""
    tenants = '["noisy","spender"]'
    gateway = new_gateway("watched", GATEWAY_METRICS_TENANTS=tenants, GATEWAY_MAX_RETRIES="0")
    gateway.start()
    yield gateway
    assert gateway.stop() == 0


FULL = re.compile(r"^vllm:kv_cache_usage_perc(\{.*\})? (0\.9[5-9]\d+|1(\.0)?)$", re.MULTILINE)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicaProcess]:
    """Random weights, and room for little more than one whole context."""
    from tests.replica.tiny_hf import save_tiny_model  # transformers, which few need

    folder = tmp_path_factory.mktemp("engine")
    save_tiny_model(folder / "tiny", context_length=CONTEXT)
    with ReplicaProcess(
        folder / "log",
        model=folder / "tiny",
        kv_cache_bytes=1_400_000,
        max_num_seqs=8,
        num_threads=1,
    ) as process:
        process.wait_ready()
        yield process


def completed(engine: ReplicaProcess, prompt: str, max_tokens: int = 1) -> None:
    body = {"model": "tiny", "prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True}
    assert engine.post("/v1/completions", body).status == 200


def test_a_full_kv_cache(engine: ReplicaProcess, rules: Rules) -> None:
    found = watch(engine.port)
    found.hold(10 * MINUTE_S)
    assert not fires(rules["PandalKvCacheFull"], found.timeline)
    crowd = [
        threading.Thread(target=completed, args=(engine, f"{number}{'x' * 2_500}", 1_500))
        for number in range(4)
    ]
    for thread in crowd:
        thread.start()
    found.hold(11 * MINUTE_S, once=lambda text: FULL.search(text) is not None)
    assert fires(rules["PandalKvCacheFull"], found.timeline)
    for thread in crowd:
        thread.join()


def test_prefixes_that_are_no_longer_found(engine: ReplicaProcess, rules: Rules) -> None:
    """A client begins to put something new at the front of its prompts."""
    found = watch(engine.port)
    found.look()
    long = "the same beginning, again and again. " * 80
    for _ in range(60):
        completed(engine, long)
    found.hold(23 * HOUR_S, every_s=HOUR_S)
    assert not fires(rules["PandalPrefixHitsDropped"], found.timeline)
    for turn in range(3):
        for number in range(62):
            completed(engine, f"{turn}-{number}: {long}")
        found.hold(15 * MINUTE_S, every_s=5 * MINUTE_S)
    assert fires(rules["PandalPrefixHitsDropped"], found.timeline)


async def test_a_noisy_neighbour(
    watched: Gateway, make_tenant: Callable[..., Tenant], upstream: Upstream, rules: Rules
) -> None:
    noisy = make_tenant(on=watched, name="noisy")
    quiet = make_tenant(on=watched)
    await asyncio.gather(noisy.accepted(), quiet.accepted())
    found = watch(watched.port)
    await asyncio.to_thread(found.look)
    for _ in range(4):
        await asyncio.gather(noisy.chat(chat()), quiet.chat(chat()))
        await asyncio.to_thread(found.hold, 4 * MINUTE_S)
    assert not fires(rules["PandalNoisyNeighbour"], found.timeline)
    upstream.behaviour = turns_away("please")
    for _ in range(4):
        await asyncio.gather(*(noisy.chat(chat()) for _ in range(10)))
        assert (await quiet.chat(chat("please"))).status == 503
        await asyncio.to_thread(found.hold, 4 * MINUTE_S)
    assert fires(rules["PandalNoisyNeighbour"], found.timeline)


def turns_away(word: str) -> Behaviour:
    """As a replica does that has no room for one more."""

    async def behave(generation: Generation) -> None:
        if word.encode() in generation.received.body:
            await generation.answer(503, b'{"error": {"message": "full"}}')
        else:
            await words(3)(generation)

    return behave


async def test_a_storm_of_retries(
    watched: Gateway, make_tenant: Callable[..., Tenant], upstream: Upstream, rules: Rules
) -> None:
    """Clients that do not wait as they are told."""
    tenant = make_tenant(on=watched, requests_per_minute=5)
    await tenant.accepted()
    found = watch(watched.port)
    for _ in range(6):  # one too many, as it may happen
        await tenant.chat(chat())
    await asyncio.to_thread(found.hold, 10 * MINUTE_S)
    assert not fires(rules["PandalRetryStorm"], found.timeline)
    for _ in range(2):
        await asyncio.gather(*(tenant.chat(chat()) for _ in range(350)))
        await asyncio.to_thread(found.hold, 4 * MINUTE_S)
    assert fires(rules["PandalRetryStorm"], found.timeline)


async def test_errors_that_use_up_the_months_allowance(
    watched: Gateway, make_tenant: Callable[..., Tenant], upstream: Upstream, rules: Rules
) -> None:
    """And it ends soon after them, while the slow one remembers."""
    fast, slowly = (rules[f"PandalAvailabilityBurns{pace}"] for pace in ("Fast", "Slowly"))
    tenant = make_tenant(on=watched)
    await tenant.accepted()
    upstream.behaviour = fails
    await tenant.chat(chat())  # long ago: what had never been counted tells no increase
    upstream.behaviour = words(3)
    found = watch(watched.port)
    await asyncio.to_thread(found.look)
    for _ in range(3):
        assert (await tenant.chat(chat())).status == 200
        await asyncio.to_thread(found.hold, 10 * MINUTE_S)
    assert not fires(fast, found.timeline)
    assert not fires(slowly, found.timeline)
    upstream.behaviour = fails
    assert (await tenant.chat(chat())).status == 502
    await asyncio.to_thread(found.hold, 4 * MINUTE_S)
    assert fires(fast, found.timeline)
    upstream.behaviour = words(3)
    assert (await tenant.chat(chat())).status == 200
    await asyncio.to_thread(found.hold, 16 * MINUTE_S)
    assert not fires(fast, found.timeline)
    assert fires(slowly, found.timeline)


async def fails(generation: Generation) -> None:
    await generation.answer(500, b'{"error": {"message": "out of order"}}')


async def test_first_tokens_that_come_late(
    watched: Gateway, make_tenant: Callable[..., Tenant], upstream: Upstream, rules: Rules
) -> None:
    fast, slowly = (rules[f"PandalFirstTokensLate{pace}"] for pace in ("Fast", "Slowly"))
    tenant = make_tenant(on=watched)
    await tenant.accepted()
    found = watch(watched.port)
    await asyncio.to_thread(found.look)
    for _ in range(8):
        await tenant.chat(chat())
    await asyncio.to_thread(found.hold, 30 * MINUTE_S)
    assert not fires(fast, found.timeline)
    assert not fires(slowly, found.timeline)
    upstream.behaviour = words(1, pause_s=1.1 * TTFT_BOUND_S)
    await asyncio.gather(*(tenant.chat(chat()) for _ in range(4)))
    await asyncio.to_thread(found.hold, 4 * MINUTE_S)
    assert fires(fast, found.timeline)
    await asyncio.to_thread(found.hold, 16 * MINUTE_S)
    assert fires(slowly, found.timeline)


async def test_streams_that_break(
    watched: Gateway, make_tenant: Callable[..., Tenant], upstream: Upstream, rules: Rules
) -> None:
    """Of a server that is none of ours: no other can go on with them."""
    tenant = make_tenant(on=watched)
    await tenant.accepted()
    found = watch(watched.port)
    await asyncio.to_thread(found.look)
    for breaks, is_broken in ((False, False), (True, True)):
        upstream.behaviour = breaks_off if breaks else words(3)
        for _ in range(2):
            await asyncio.gather(*(tenant.chat(chat(stream=True)) for _ in range(40)))
            await asyncio.to_thread(found.hold, 4 * MINUTE_S)
        assert fires(rules["PandalStreamsBreak"], found.timeline) is is_broken


async def breaks_off(generation: Generation) -> None:
    await generation.start_stream()
    await generation.word()
    generation.reset()


async def test_an_outbox_that_grows(
    start_gateway: Callable[..., Gateway],
    make_tenant: Callable[..., Tenant],
    rules: Rules,
    tmp_path: Path,
) -> None:
    """Brokers are away; what is too much is given up where that is asked for."""
    gateway = start_gateway(
        GATEWAY_SPOOL_DIR=str(tmp_path / "spool"),
        GATEWAY_KAFKA_BOOTSTRAP="127.0.0.1:1",
        GATEWAY_SPOOL_MAX_WAITING_BYTES=str(OUTBOX_BYTES),
        GATEWAY_SPOOL_FULL="shed",
        GATEWAY_SPOOL_SEGMENT_BYTES="4096",
    )
    tenant = make_tenant(on=gateway)
    await tenant.accepted()
    found = watch(gateway.port)
    await asyncio.to_thread(found.hold, 11 * MINUTE_S)
    assert not fires(rules["PandalOutboxGrows"], found.timeline)
    for _ in range(8):
        assert (await tenant.chat(chat())).status == 200
    await asyncio.to_thread(eventually, lambda: waiting_bytes(gateway) > OUTBOX_BYTES / 4, "events")
    await asyncio.to_thread(found.hold, 11 * MINUTE_S)
    assert fires(rules["PandalOutboxGrows"], found.timeline)
    assert not fires(rules["PandalOutboxSheds"], found.timeline)
    while '"outbox full, events given up"' not in gateway.log_path.read_text():
        assert (await tenant.chat(chat())).status == 200
    await asyncio.to_thread(found.hold, MINUTE_S)
    assert fires(rules["PandalOutboxSheds"], found.timeline)


def waiting_bytes(gateway: Gateway) -> float:
    lines = asked(gateway.port, "GET", "/metrics").decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(GATEWAY_OUTBOX_BYTES))


async def test_costs_that_run_away(
    watched: Gateway, make_tenant: Callable[..., Tenant], upstream: Upstream, rules: Rules
) -> None:
    budget = QuotaRule(tokens_per_day=2_000_000)
    spender = make_tenant(on=watched, name="spender", rules=(budget,), tier="gold")
    await spender.accepted()
    upstream.behaviour = uses(150_000)
    found = watch(watched.port)
    await asyncio.to_thread(found.look)
    await spender.chat(chat())
    await asyncio.to_thread(found.hold, 24 * HOUR_S, 5 * MINUTE_S)
    assert not fires(rules["PandalTokensSurge"], found.timeline)
    assert not fires(rules["PandalBudgetBurns"], found.timeline)
    upstream.behaviour = uses(1_850_000)
    await spender.chat(chat())
    await asyncio.to_thread(eventually, lambda: "} 1.0" in budget_line(watched), "the budget")
    await asyncio.to_thread(found.hold, 20 * MINUTE_S)
    assert fires(rules["PandalTokensSurge"], found.timeline)
    assert fires(rules["PandalBudgetBurns"], found.timeline)


async def test_money_that_runs_away(rules: Rules) -> None:
    """Few tokens of a dear model: no surge of tokens says it."""
    told = billing_telemetry.Told(lambda: datetime.now(UTC))
    async with billing_telemetry.Telemetry(told).served("127.0.0.1", 0) as port:
        found = watch(port)
        await asyncio.to_thread(found.look)
        told.note_posted(charged(usd=1))
        await asyncio.to_thread(found.hold, 24 * HOUR_S, 5 * MINUTE_S)
        assert not fires(rules["PandalSpendSurges"], found.timeline)
        told.note_posted(charged(usd=20))
        await asyncio.to_thread(found.hold, 20 * MINUTE_S)
    assert fires(rules["PandalSpendSurges"], found.timeline)
    assert not fires(rules["PandalTokensSurge"], found.timeline)


def charged(usd: int) -> PostResult:
    return PostResult(
        num_events=1, num_posted=1, num_repeated=0, num_unpriced=0, num_dead=0,
        charged_pico_usd=usd * 10**12,
    )  # fmt: skip


def budget_line(gateway: Gateway) -> str:
    lines = asked(gateway.port, "GET", "/metrics").decode().splitlines()
    return next((x for x in lines if x.startswith(GATEWAY_TENANT_BUDGET_USED)), "")


def uses(num_tokens: int) -> Behaviour:
    """As a replica that was given a prompt of that length."""

    async def behave(generation: Generation) -> None:
        message = {"role": "assistant", "content": "yes"}
        usage = {"prompt_tokens": num_tokens, "completion_tokens": 1}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        document = {"id": "c", "object": "chat.completion", "created": 0, "choices": [choice]}
        await generation.answer(200, msgspec.json.encode({**document, "usage": usage}))

    return behave


async def test_a_fleet_that_does_not_follow(rules: Rules) -> None:
    """What is wanted is started and does not become ready."""
    told = Told(lambda: 0.0, leads=lambda: True)
    scene = Scene(ordered=2)
    async with Telemetry(told).served("127.0.0.1", 0) as port:
        found = watch(port)
        for phase, is_late in ((Phase.READY, False), (Phase.STARTING, True)):
            told.note("chat", report(scene, phase))
            await asyncio.to_thread(found.hold, 16 * MINUTE_S)
            assert fires(rules["PandalScalingLags"], found.timeline) is is_late


def report(scene: Scene, phase: Phase) -> Report:
    decision = scene.look(1.5)
    pods = tuple(Replica(f"r{number}", phase) for number in range(decision.wanted["h200"]))
    state = PoolState(scene.now_s, (VariantState("h200", len(pods), pods),), None)
    return Report(state, decision, (), (), None, None)
