"""Real HTTP: what engines say in their dialects, and what is made of those that say nothing."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import msgspec
import pytest

from autoscaler.cluster import Address, ClusterView
from autoscaler.engine_metrics import ENGINE_READING, EngineSample, engine_sample
from autoscaler.errors import SourceFailed
from autoscaler.exposition import Families, parse
from autoscaler.gateway_metrics import gateway_sample
from autoscaler.kubernetes.gateway_pods import GatewayPods
from autoscaler.kubernetes.objects import Pod
from autoscaler.kubernetes.resource import GatewaySource
from autoscaler.latency import grown, p95
from autoscaler.observe import GatewaySample, Observer
from autoscaler.pool import Phase, PoolState, Replica, VariantState
from autoscaler.reconciler import Report
from autoscaler.scrape import PodPages, get
from autoscaler.telemetry import Telemetry, Told
from tests.autoscaler.pools import Scene, replicas

VLLM = """# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a\\"b"} 7.0
vllm:num_requests_waiting{engine="0",model_name="a\\"b"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="a\\"b"} 0.25
vllm:prompt_tokens_total{engine="0",model_name="a\\"b"} 1000.0
vllm:generation_tokens_total{engine="0",model_name="a\\"b"} 500.0
vllm:request_success_total{finished_reason="stop",model_name="a\\"b"} 3.0
vllm:request_success_total{finished_reason="length",model_name="a\\"b"} 2.0
vllm:time_to_first_token_seconds_bucket{le="0.5",model_name="a\\"b"} 4.0
vllm:time_to_first_token_seconds_bucket{le="+Inf",model_name="a\\"b"} 5.0
"""
SGLANG = """sglang:num_running_reqs{model_name="m"} 7.0
sglang:num_queue_reqs{model_name="m"} 2.0
sglang:token_usage{model_name="m"} 0.25
sglang:prompt_tokens_total{model_name="m"} 1000.0
sglang:generation_tokens_total{model_name="m"} 500.0
sglang:num_requests_total{model_name="m"} 5.0
sglang:time_to_first_token_seconds_bucket{le="0.5",model_name="m"} 4.0
sglang:time_to_first_token_seconds_bucket{le="+Inf",model_name="m"} 5.0
"""
SAMPLE = EngineSample(7, 2, 0.25, 1000.0, 500.0, 5.0, {0.5: 4.0, float("inf"): 5.0})


@asynccontextmanager
async def engine(page: bytes | None) -> AsyncIterator[Address]:
    """Answers every connection with the page; ``None``: never answers."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            if page is None:
                await reader.read()
            else:
                writer.write(page)
                await writer.drain()
        finally:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    async with server:
        yield Address(host, port)


def ok(text: str) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\n" + text.encode()


@pytest.mark.parametrize(
    "page", [VLLM, VLLM.replace("vllm:", "vllm_"), SGLANG], ids=["vllm:", "vllm_", "sglang"]
)
async def test_every_dialect_says_the_same(page: str) -> None:
    async with engine(ok(page)) as address:
        assert await PodPages(60.0).read({"r": address}, ENGINE_READING) == {"r": SAMPLE}


async def test_a_failure_of_one_is_unknown_for_that_one_only() -> None:
    nan = VLLM.replace('waiting{engine="0",model_name="a\\"b"} 2.0', 'waiting{a="b"} NaN')
    no_bound = VLLM.replace('le="0.5"', 'le="x"')
    no_count = VLLM.replace('le="0.5",model_name="a\\"b"} 4.0', 'le="0.5"} NaN')
    missing = "\n".join(line for line in VLLM.splitlines() if "kv_cache" not in line)
    async with (
        engine(ok(VLLM)) as good,
        engine(None) as silent,
        engine(b"HTTP/1.1 503 Busy\r\n\r\n" + VLLM.encode()) as busy,
        engine(ok("<html>sign in</html>")) as wrong,
        engine(ok(nan)) as broken,
        engine(ok(missing)) as partial,
        engine(ok(no_bound)) as unbounded,
        engine(ok(no_count)) as uncounted,
        engine(b"") as empty,
    ):
        async with engine(b"") as gone:
            pass
        found = await PodPages(3.0).read(
            {
                "good": good, "silent": silent, "busy": busy, "wrong": wrong, "broken": broken,
                "partial": partial, "empty": empty, "gone": gone,
                "unbounded": unbounded, "uncounted": uncounted,
            },
            ENGINE_READING,
        )  # fmt: skip
    assert len(found) == 10
    assert {pod: sample for pod, sample in found.items() if sample is not None} == {"good": SAMPLE}


def test_what_is_no_metrics_page_is_refused() -> None:
    for text in ("just words here {", 'name{a="b"} many'):
        with pytest.raises(SourceFailed):
            parse(text)
    with pytest.raises(SourceFailed, match="neither"):
        engine_sample(parse("node_load1 0.2\n"))


def test_a_percentile_of_few_samples_says_how_few() -> None:
    inf = float("inf")
    one_slow = p95({0.25: 2.0, 0.5: 2.0, 10.0: 2.0, 20.0: 3.0, inf: 3.0})
    assert one_slow is not None
    assert one_slow.num_samples == 3
    assert one_slow.p95_s == pytest.approx(18.5)
    assert p95({0.5: 0.0, inf: 0.0}) is None
    assert p95({}) is None
    beyond = p95({0.5: 0.0, inf: 9.0})
    assert beyond is not None
    assert beyond.p95_s == 0.5
    assert grown({0.5: 5.0}, {0.5: 2.0}) == {}


def view(*names: str) -> ClusterView:
    pods = tuple(Replica(name, Phase.READY) for name in names)
    return ClusterView((VariantState("v", len(names), pods),))


def sample(finished: float, running: int) -> EngineSample:
    return EngineSample(running, 0, 0.1, 0.0, 100 * finished, finished, {})


def looked(*looks: tuple[ClusterView, dict[str, EngineSample | None]]) -> PoolState:
    observer = Observer()
    for i, (seen, samples) in enumerate(looks):
        state = observer.look(seen, samples, 10.0 * i)
    return state


def test_one_look_knows_no_demand() -> None:
    assert looked((view("a"), {"a": sample(5, 2)})).demand is None


def test_long_streams_count_when_they_begin() -> None:
    demand = looked((view("a"), {"a": sample(5, 0)}), (view("a"), {"a": sample(5, 40)})).demand
    assert demand is not None
    assert demand.num_arrived == 40
    assert demand.num_in_flight == 40
    assert (demand.work_tokens, demand.num_done) == (0, 20), "half of each is behind it, on average"


def test_a_restarted_engine_has_no_rate_until_its_second_look() -> None:
    state = looked(
        (view("a", "b"), {"a": sample(100, 2), "b": sample(100, 2)}),
        (view("a", "b"), {"a": sample(3, 2), "b": sample(110, 2)}),
    )
    assert state.demand is not None
    assert state.demand.num_arrived == 20  # b's ten, and as many for a
    assert [load.tokens_per_s for load in state.loads] == [None, 100.0]


def test_series_of_a_deleted_pod_are_not_looked_at() -> None:
    state = looked(
        (view("a", "b"), {"a": sample(10, 0), "b": sample(10, 9)}),
        (view("a"), {"a": sample(20, 0), "b": sample(99, 50)}),
    )
    assert state.demand is not None
    assert state.demand.num_arrived == 10
    assert state.num_in_flight == 0


def test_when_none_tells_demand_is_unknown_and_not_zero() -> None:
    state = looked((view("a"), {"a": sample(5, 2)}), (view("a"), {"a": None}))
    assert state.demand is None
    assert state.num_unknown == 1


def phased(**phases: Phase) -> ClusterView:
    pods = tuple(Replica(name, phase) for name, phase in phases.items())
    return ClusterView((VariantState("v", len(pods), pods),))


def test_a_missed_scrape_does_not_double_the_demand() -> None:
    both = view("a", "b")
    state = looked(
        (both, {"a": sample(0, 0), "b": sample(0, 0)}),
        (both, {"a": sample(10, 0), "b": None}),
        (both, {"a": sample(20, 0), "b": sample(20, 0)}),
    )
    assert state.demand is not None
    assert state.demand.num_arrived == pytest.approx(20)
    assert [load.tokens_per_s for load in state.loads] == [100.0, 100.0]


def test_where_all_have_stopped_serving_demand_is_unknown_and_not_zero() -> None:
    starting = phased(a=Phase.STARTING)
    assert looked((view("a"), {"a": sample(5, 2)}), (starting, {"a": None})).demand is None
    told = looked((view("a"), {"a": sample(5, 2)}), (starting, {"a": sample(9, 2)}))
    assert told.demand is None
    assert told.loads == []


def test_only_those_that_serve_are_counted_and_scaled() -> None:
    seen = phased(a=Phase.READY, b=Phase.READY, c=Phase.STUCK, d=Phase.DRAINING)
    state = looked(
        (seen, {"a": sample(0, 2), "c": sample(0, 0), "d": sample(0, 3)}),
        (seen, {"a": sample(10, 2), "b": None, "c": sample(99, 9), "d": sample(1, 2)}),
    )
    assert state.demand is not None
    assert state.demand.num_arrived == pytest.approx(20)  # a's ten, as many for b, none of d
    assert state.demand.num_in_flight == 6  # of three that serve; two told four


def one(num_arrived: float, num_queued: int, num_open: int = 0) -> dict[str, GatewaySample]:
    """What the only gateway says."""
    return {"g": GatewaySample(num_arrived, num_queued, num_open)}


def test_the_gateway_counts_who_asks_of_a_pool_at_zero() -> None:
    asleep, observer = ClusterView((VariantState("v", 0, ()),)), Observer()
    assert observer.look(asleep, {}, 0.0, one(7, 0)).demand is None
    state = observer.look(asleep, {}, 10.0, one(9, 1))
    assert state.demand is not None
    assert (state.demand.num_arrived, state.demand.num_in_flight) == (2.0, 1)
    assert state.num_queued == 1
    assert observer.look(asleep, {}, 20.0, None).demand is None
    missed = observer.look(asleep, {}, 30.0, one(13, 0)).demand
    assert missed is not None
    assert missed.num_arrived == 2.0  # four in twenty seconds
    assert observer.look(asleep, {}, 40.0, one(1, 0)).demand is None, "it began anew"


def test_a_gateway_that_comes_and_goes_is_no_new_demand() -> None:
    asleep, observer = ClusterView((VariantState("v", 0, ()),)), Observer()
    old, rates = 100_000, []
    for i in range(8):
        told = {"a": GatewaySample(50 * i, 0)}
        if i != 3:  # its readiness flaps
            told["b"] = GatewaySample(old + 50 * i, 0)
        if i >= 5:
            told["c"] = GatewaySample(7_000 + 100 * (i - 5), 0)
        demand = observer.look(asleep, {}, 10.0 * i, told).demand
        rates.append(None if demand is None else demand.num_arrived)
    assert rates == [None, 100, 100, 50, 100, 100, 200, 200]


def test_a_gateway_that_began_anew_does_not_hide_the_others() -> None:
    asleep, observer = ClusterView((VariantState("v", 0, ()),)), Observer()
    observer.look(asleep, {}, 0.0, {"a": GatewaySample(500, 0), "b": GatewaySample(500, 0)})
    told = {"a": GatewaySample(540, 0), "b": GatewaySample(3, 2)}
    state = observer.look(asleep, {}, 10.0, told)
    assert state.demand is not None
    assert (state.demand.num_arrived, state.num_queued) == (40, 2)


def first_tokens(early: int, late: int) -> dict[str, GatewaySample]:
    buckets = {1.0: float(early), 10.0: float(early + late), float("inf"): float(early + late)}
    return {"g": GatewaySample(early + late, 0, ttft=buckets)}


def test_what_clients_wait_is_counted_from_look_to_look_and_for_a_minute() -> None:
    asleep, observer = ClusterView((VariantState("v", 0, ()),)), Observer()
    assert observer.look(asleep, {}, 0.0, first_tokens(9_999, 0)).gateway_ttft is None
    late = observer.look(asleep, {}, 10.0, first_tokens(9_999, 40)).gateway_ttft
    assert late is not None
    assert late.num_samples == 40
    assert late.p95_s == pytest.approx(1.0 + 0.95 * 9.0)
    assert observer.look(asleep, {}, 20.0, None).gateway_ttft == late, "of the minute"
    assert observer.look(asleep, {}, 71.0, first_tokens(9_999, 40)).gateway_ttft is None
    restarted = observer.look(asleep, {}, 81.0, first_tokens(5, 0))
    assert restarted.gateway_ttft is None


def gateway_page(served: int, refused: int, limited: int, active: int) -> Families:
    return parse(
        f'pandal_gateway_requests_total{{endpoint="chat",status="200"}} {served}\n'
        f'pandal_gateway_requests_total{{endpoint="chat",status="503"}} {refused}\n'
        f'pandal_gateway_requests_total{{endpoint="chat",status="429"}} {limited}\n'
        f'pandal_gateway_refusals_total{{reason="server_is_overloaded"}} {refused}\n'
        f'pandal_gateway_refusals_total{{reason="rate_limit_exceeded"}} {limited}\n'
        f"pandal_gateway_active_requests {active}\n"
        f"pandal_gateway_waiting_requests {active // 2}\n"
        f'pandal_gateway_time_to_first_token_seconds_bucket{{le="0.5"}} {served}\n'
        f'pandal_gateway_time_to_first_token_seconds_bucket{{le="+Inf"}} {served}\n'
    )


def test_the_gateways_own_page_says_who_asks() -> None:
    buckets = {0.5: 10.0, float("inf"): 10.0}
    assert gateway_sample(gateway_page(10, 3, 99, 2)) == GatewaySample(13, 1, 2, buckets)
    with pytest.raises(SourceFailed, match="missing"):
        gateway_sample(parse("node_load1 0.2\n"))
    with pytest.raises(SourceFailed, match="no number"):
        gateway_sample(parse('pandal_gateway_requests_total{status="ok"} 1\n'))


def test_a_stream_counts_at_the_gateway_when_it_begins_and_only_once() -> None:
    asleep, observer = ClusterView((VariantState("v", 0, ()),)), Observer()
    looks = [(0, 0), (0, 1), (0, 1), (1, 0), (0, 0)]
    rates = []
    for i, (ended, open_) in enumerate(looks):
        demand = observer.look(asleep, {}, 10.0 * i, one(ended, 0, open_)).demand
        rates.append(None if demand is None else demand.num_arrived)
    assert rates == [None, 1.0, 0.0, 0.0, None], "the last one began anew"


class OnePod:
    """A gateway's pod, wherever it listens."""

    def __init__(self, address: Address, ready: str = "True") -> None:
        conditions = [{"type": "Ready", "status": ready}]
        status = {"phase": "Running", "podIP": address.host, "conditions": conditions}
        self.pod = msgspec.convert({"metadata": {"name": "g", "uid": "u"}, "status": status}, Pod)

    async def matching(self, label_selector: str) -> Mapping[str, Pod]:
        assert label_selector == "app=gateway"
        return {"g": self.pod}


async def test_every_gateway_pod_is_asked_and_a_silent_one_makes_it_unknown() -> None:
    page = (
        'pandal_gateway_requests_total{endpoint="chat",status="200"} 7\n'
        "pandal_gateway_active_requests 2\npandal_gateway_waiting_requests 1\n"
    )
    async with engine(ok(page)) as well, engine(None) as silent:
        asked = []
        for address, ready in ((well, "True"), (silent, "True"), (well, "False")):
            source = GatewaySource("app=gateway", address.port)
            pages = PodPages(0.5 if address is silent else 60.0)
            asked.append(await GatewayPods(OnePod(address, ready), source, pages).ask())
    assert asked == [{"u": GatewaySample(7, 1, 2)}, None, None]


async def test_the_autoscalers_own_page_can_be_scraped_like_any_other() -> None:
    told = Told(lambda: 0.0, leads=lambda: True)
    scene = Scene(ordered=4)
    decision = scene.look(6.0)
    found = VariantState("h200", 4, replicas(3, starting=1))
    told.note("chat", Report(PoolState(0.0, (found,), None), decision, (), (), "HPA/x", None))
    async with Telemetry(told).served("127.0.0.1", 0) as port:
        address = Address("127.0.0.1", port)
        families = parse(await get(address, "/metrics", timeout_s=60.0))
        assert await get(address, "/health", timeout_s=60.0) == "ok\n"
        with pytest.raises(SourceFailed):
            await get(address, "/other", timeout_s=60.0)
    by_phase = {s.labels["phase"]: s.value for s in families["pandal_autoscaler_replicas"]}
    assert (by_phase["ready"], by_phase["starting"], by_phase["stuck"]) == (3, 1, 0)
    assert families["pandal_autoscaler_leads"][0].value == 1
    assert families["pandal_autoscaler_conflict"][0].value == 1
    assert {s.labels["pool"] for s in families["pandal_autoscaler_reasons_total"]} == {"chat"}


def test_who_does_not_lead_counts_no_reasons() -> None:
    leads = False
    told = Told(lambda: 0.0, leads=lambda: leads)
    scene = Scene(ordered=1)
    decision = scene.look(6.0)
    report = Report(PoolState(0.0, (), None), decision, (), (), None, None)
    told.note("chat", report)
    assert told.reports == {"chat": report}
    assert told.reasons.total() == 0
    leads = True
    told.note("chat", report)
    assert told.reasons.total() == len(decision.reasons) > 0
