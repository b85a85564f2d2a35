"""What routing knows of replicas: their load, their health, and how long they have been there."""

import asyncio

import msgspec
import pytest
from msgspec.structs import replace

from contracts.usage import Outcome
from gateway.clock import SYSTEM_CLOCK, Clock
from gateway.prompt import Affinity
from gateway.routing.ejection import Record, eject
from gateway.routing.foreign_metrics import Engine, ForeignLoad, foreign_load
from gateway.routing.inspection import Inspector
from gateway.routing.others_load import OthersLoad, neutral_tokens
from gateway.routing.pool import PoolTimings, ReplicaPool
from gateway.routing.ring import ring_point
from gateway.routing.stay import Stay
from gateway.upstream.replica_client import ReplicaClient, Timeouts
from tests.gateway.fleets import LOAD, fleet_of, inference_request
from tests.gateway.scene import until
from tests.gateway.upstream_server import Upstream

BUSY = replace(LOAD, num_running=8, queued_prompt_tokens=3_000, expected_output_tokens=1_000)


def test_of_a_report_only_the_others_share_counts() -> None:
    others = OthersLoad()
    for num_own, expected in ((0, 4_000), (6, 1_000), (8, 0), (12, 0)):
        others.report(BUSY, num_own, now_s=0.0)
        assert others.tokens(0.0, neutral_tokens=0.0) == expected


def test_an_old_report_fades_to_what_the_others_have() -> None:
    """Not to nothing: whose reports end would be everybody's least busy (llm-d-router#2408)."""
    stale, fresh = OthersLoad(), OthersLoad()
    stale.report(BUSY, 0, now_s=0.0)
    fresh.report(replace(BUSY, queued_prompt_tokens=1_000), 0, now_s=20.0)
    neutral = neutral_tokens([stale, fresh], now_s=20.0)
    assert neutral == 2_000.0
    seen = [stale.tokens(now_s, neutral) for now_s in (0.0, 3.0, 6.5, 10.0, 20.0)]
    assert seen == [4_000, 4_000, 3_000, 2_000, 2_000]
    assert neutral_tokens([stale], now_s=20.0) is None


VLLM = b"""# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 2.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 4.0
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:kv_cache_usage_perc{engine="1"} 0.75
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="500",sliding_window="None"} 1.0
vllm:cache_config_info{block_size="16",engine="1",num_gpu_blocks="500",sliding_window="None"} 1.0
"""
SGLANG = b"""sglang:num_running_reqs{model_name="m"} 7.0
sglang:num_queue_reqs{model_name="m"} 1.0
sglang:token_usage 0.5
sglang:max_total_num_tokens{model_name="m"} 20000
"""


@pytest.mark.parametrize(
    ("exposition", "expected"),
    [
        pytest.param(VLLM, ForeignLoad(Engine.VLLM, 5, 4, 0.75, 16_000), id="vllm-of-two-ranks"),
        pytest.param(SGLANG, ForeignLoad(Engine.SGLANG, 7, 1, 0.5, 20_000), id="sglang"),
        pytest.param(
            b'vllm:num_requests_running 1\nvllm:cache_config_info{num_gpu_blocks="None"} 1.0\n',
            ForeignLoad(Engine.VLLM, 1),
            id="vllm-before-its-cache-is-there",
        ),
        pytest.param(b"process_cpu_seconds_total 1.5\n", ForeignLoad(Engine.OTHER), id="another"),
        pytest.param(b"vllm:num_requests_running NaN\n", ForeignLoad(Engine.OTHER), id="no-number"),
        pytest.param(b"", ForeignLoad(Engine.OTHER), id="none"),
    ],
)
def test_engines_of_other_makes_are_told_apart_by_their_metrics(
    exposition: bytes, expected: ForeignLoad
) -> None:
    assert foreign_load(exposition) == expected


async def test_requests_of_others_at_another_make_count_as_ours_do_there() -> None:
    pool = fleet_of("a", "b").pool
    for name in "ab":
        pool[name].report_foreign(ForeignLoad(Engine.VLLM, 9), now_s=0.0)
    Stay(pool["a"], 100, 300, None)
    pool["a"].report_foreign(ForeignLoad(Engine.VLLM, 9), SYSTEM_CLOCK.monotonic_s())
    pool["b"].report_foreign(ForeignLoad(Engine.OTHER), SYSTEM_CLOCK.monotonic_s())
    pool.refresh()
    assert pool["a"].endpoint.load_tokens == 300 + 8 * 300
    assert pool["b"].endpoint.load_tokens == 8 * 300, "it tells nothing: as much as the other"


class Moment:
    """A clock that stands still until it is told to go on."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.clock = Clock(lambda: self.now_s, lambda: self.now_s)


async def test_a_prompt_counts_until_the_first_token_and_the_answer_until_its_end() -> None:
    fleet = fleet_of("a", "b")
    endpoint = fleet.pool["a"].endpoint
    request = inference_request("m", prompt_tokens=700, reserved_tokens=50)
    fleet.require_candidate(request)
    stay = fleet.begin(fleet.pool["a"], request, 0.0)
    assert endpoint.load_tokens == 750
    fleet.first_token(stay, 0.1)
    assert endpoint.load_tokens == 50
    fleet.end(stay)
    assert endpoint.load_tokens == 0
    fleet.end(fleet.begin(fleet.pool["a"], request, 0.0))
    assert endpoint.load_tokens == 0, "also where no token came"


async def test_a_beginning_is_expected_where_it_was_sent_and_came_to_something() -> None:
    moment = Moment()
    fleet = fleet_of("a", clock=moment.clock)
    replica, now_s = fleet.pool["a"], moment.now_s
    replica.forecast.report(LOAD, now_s)  # a thousand tokens a second
    shared = b"k" * 33 + b"s" * 500
    first, next_one = (
        replace(inference_request("m", prompt_tokens=1_000), affinity=Affinity(shared, each))
        for each in (b"first", b"next")
    )
    replica.forecast.send(400, now_s, tells_first_token=True)
    assert not fleet.has_room(next_one, target_s=1.0)
    fleet.end(fleet.begin(replica, first, now_s))
    assert not fleet.has_room(next_one, target_s=1.0), "no token came"
    stay = fleet.begin(replica, first, now_s)
    stay.has_begun = True
    fleet.end(stay)
    assert fleet.has_room(next_one, target_s=1.0)


async def test_own_and_others_requests_add_up_and_reports_fade() -> None:
    moment = Moment()
    pool = fleet_of("a", "b", clock=moment.clock).pool
    pool.refresh()
    assert pool.is_blind
    Stay(pool["a"], 100, 300, None)
    pool["a"].report(replace(BUSY, num_running=4), moment.now_s)  # three of four are others'
    pool["b"].report(LOAD, moment.now_s)
    pool.refresh()
    assert not pool.is_blind
    loads = [endpoint.load_tokens for endpoint in pool.endpoints()]
    assert loads == [300 + 3_000, 0]
    moment.now_s += 60.0
    pool["b"].report(LOAD, moment.now_s)
    pool.refresh()
    assert [endpoint.load_tokens for endpoint in pool.endpoints()] == [300, 0]


FULL = replace(
    LOAD, num_running=4, kv_cache_usage=1.0, num_kv_blocks=1_000, expected_output_tokens=40
)


async def test_a_full_kv_cache_counts_for_more_than_its_tokens_say_as_long_as_it_is_told() -> None:
    """It would preempt one of the four, and compute it again (prime-rl#3255)."""
    moment = Moment()
    fleet, request = fleet_of("a", "b", clock=moment.clock), inference_request("m")
    pool = fleet.pool
    pool["b"].report(replace(BUSY, queued_prompt_tokens=1_000), moment.now_s)
    for usage, extra in ((0.8, 0), (0.925, 1_850), (1.0, 4_000)):
        pool["a"].report(replace(FULL, kv_cache_usage=usage), moment.now_s)
        pool.refresh()
        assert pool["a"].endpoint.load_tokens == 40 + extra
    assert {fleet.choose(request, ()).endpoint.name for _ in range(20)} == {"b"}
    moment.now_s += 4.0
    pool["b"].report(replace(BUSY, queued_prompt_tokens=1_000), moment.now_s)
    pool.refresh()
    assert pool["a"].endpoint.load_tokens < 3_000, "what is old is no longer held against it"
    pool["a"].report(replace(FULL, num_running=0, kv_cache_usage=1.0), moment.now_s)
    pool.refresh()
    assert pool["a"].endpoint.load_tokens == 0, "there is nobody to preempt"


async def test_a_full_kv_cache_of_another_make_counts_alike() -> None:
    moment = Moment()
    pool = fleet_of("a", clock=moment.clock).pool
    pool["a"].report_foreign(ForeignLoad(Engine.VLLM, 4, 0, 1.0, 16_000), moment.now_s)
    pool.refresh()
    assert pool["a"].endpoint.load_tokens == 4 * 512 + 4_000


async def test_a_much_slower_replica_is_known_as_such_and_a_little_is_nothing() -> None:
    pool = fleet_of("a", "b", "c").pool
    for name, rate in (("a", 1_000.0), ("b", 900.0), ("c", 200.0)):
        pool[name].report(replace(LOAD, prefill_tokens_per_s=rate), 0.0)
    pool.refresh()
    slowness = {endpoint.name: endpoint.slowness for endpoint in pool.endpoints()}
    assert slowness == {"a": 1.0, "b": 1.0, "c": pytest.approx(3.5)}


def records(**outcomes: tuple[int, int]) -> dict[str, Record]:
    """Of successes and failures, by name."""
    made = {}
    for name, (num_good, num_bad) in outcomes.items():
        made[name] = Record()
        for is_failure in [False] * num_good + [True] * num_bad:
            made[name].note(is_failure=is_failure)
    return made


def test_who_fails_much_more_often_than_the_others_is_ejected_for_a_while() -> None:
    seen = records(a=(100, 0), b=(2, 20), c=(100, 1))
    assert eject(seen, 0.0) == {"b"}
    assert eject(seen, 9.0) == {"b"}
    assert eject(seen, 11.0) == set()
    for _ in range(20):
        seen["b"].note(is_failure=True)
    assert eject(seen, 12.0) == {"b"}
    assert eject(seen, 30.0) == {"b"}, "twice as long the second time"
    assert eject(seen, 33.0) == set()


@pytest.mark.parametrize(
    ("outcomes", "ejected"),
    [
        pytest.param({"a": (0, 50), "b": (0, 50), "c": (0, 50)}, 0, id="everybody-fails"),
        pytest.param({"a": (50, 0), "b": (0, 4)}, 0, id="too-few-to-tell"),
        pytest.param({"a": (0, 90)}, 0, id="the-only-one"),
        pytest.param({"a": (0, 90), "b": (90, 0)}, 1, id="one-of-two"),
        pytest.param(
            {"a": (0, 90), "b": (0, 90), "c": (90, 0), "d": (90, 0)}, 2, id="half-of-them"
        ),
        pytest.param({"a": (80, 15), "b": (90, 0)}, 0, id="now-and-then"),
    ],
)
def test_never_the_whole_pool_and_never_for_what_all_do(
    outcomes: dict[str, tuple[int, int]], ejected: int
) -> None:
    assert len(eject(records(**outcomes), 0.0)) == ejected


@pytest.mark.parametrize("failing", ["a", "c"])
async def test_an_ejected_replica_gets_nothing_unless_nobody_else_serves_the_model(
    failing: str,
) -> None:
    fleet, request = fleet_of("a", "b", "c"), inference_request("m")
    fleet.pool["c"].models = frozenset({"rare"})
    fleet.pool["c"].set_ready(is_ready=True)
    for name in failing:
        for _ in range(10):
            fleet.ended(name, Outcome.UPSTREAM_FAILED)
    for _ in range(40):
        fleet.ended("b", Outcome.COMPLETED)
        fleet.ended("b", Outcome.CLIENT_DISCONNECTED)
    fleet.pool.refresh()
    assert [e.name for e in fleet.pool.endpoints() if e.is_ejected] == [failing]
    chosen = {fleet.choose(request, ()).endpoint.name for _ in range(20)}
    assert chosen <= {"a", "b"} - {failing}
    assert fleet.choose(inference_request("rare"), ()).endpoint.name == "c"


def client(name: str) -> ReplicaClient:
    timeouts = Timeouts(connect_s=1.0, head_s=1.0, idle_s=1.0, keep_alive_s=1.0)
    return ReplicaClient(name, "http://127.0.0.1:1", timeouts)


async def test_one_that_joins_warms_up_and_one_that_was_there_from_the_beginning_is_warm() -> None:
    moment = Moment()
    pool = fleet_of("a", "b", clock=moment.clock).pool
    moment.now_s += 60.0
    pool.join(client("c"))
    replica = pool["c"]
    replica.models = frozenset({"m"})
    replica.set_ready(True, moment.now_s, is_join=True)
    seen = []
    for _ in range(4):
        pool.refresh()
        seen.append(replica.endpoint.warmth)
        moment.now_s += 15.0
    assert seen == [0.0, 0.5, 1.0, 1.0]
    assert pool["a"].endpoint.warmth == 1.0
    replica.set_ready(False, moment.now_s)
    replica.set_ready(True, moment.now_s + 1.0, is_join=True)
    assert replica.endpoint.warmth == 1.0, "a moment's absence is no restart"
    replica.set_ready(False, moment.now_s)
    replica.set_ready(True, moment.now_s + 30.0, is_join=True)
    assert replica.endpoint.warmth == 0.0


async def test_one_that_leaves_gets_nothing_more_and_what_runs_there_goes_on() -> None:
    fleet, request = fleet_of("a", "b"), inference_request("m")
    replica = fleet.pool["a"]
    stay = fleet.begin(replica, request, 0.0)
    fleet.pool.leave("a")
    assert {fleet.choose(request, ()).endpoint.name for _ in range(20)} == {"b"}
    fleet.ended("a", Outcome.UPSTREAM_FAILED)
    fleet.end(stay)
    assert replica.num_in_flight == 0
    fleet.pool.leave("a")
    fleet.pool.join(client("a"))
    assert fleet.pool["a"] is not replica
    assert not fleet.pool["a"].is_ready, "until it says so"


async def test_a_replica_that_does_not_tell_its_load_now_is_of_our_make_still(
    upstream: Upstream,
) -> None:
    upstream.load = msgspec.to_builtins(LOAD)
    timings = PoolTimings(poll_interval_s=0.01, poll_timeout_s=5.0, slow_start_s=1.0)
    timeouts = Timeouts(connect_s=5.0, head_s=5.0, idle_s=5.0, keep_alive_s=5.0)
    polled = ReplicaClient("a", upstream.url, timeouts)
    pool = ReplicaPool([polled], {}, timings, SYSTEM_CLOCK)
    watching = asyncio.create_task(pool.watch(lambda: None))
    await until(lambda: pool["a"].has_reported)
    upstream.load_status = 503
    asked = upstream.num_load_reports
    await until(lambda: upstream.num_load_reports > asked + 1)
    assert pool["a"].has_reported
    upstream.load = None
    await until(lambda: not pool["a"].has_reported)
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    await pool.close()


async def test_a_model_is_known_as_soon_as_its_replica_tells_of_it(upstream: Upstream) -> None:
    """Not only once its load is told as well."""
    upstream.load, upstream.holds_load = msgspec.to_builtins(LOAD), True
    timings = PoolTimings(poll_interval_s=0.01, poll_timeout_s=60.0, slow_start_s=1.0)
    timeouts = Timeouts(connect_s=5.0, head_s=60.0, idle_s=60.0, keep_alive_s=5.0)
    pool = ReplicaPool([ReplicaClient("a", upstream.url, timeouts)], {}, timings, SYSTEM_CLOCK)
    watching = asyncio.create_task(pool.watch(lambda: None))
    await until(lambda: upstream.num_load_reports > 0)
    names = [pool.resolve(model) for model in pool.served_models()]
    upstream.holds_load = False
    assert names == [upstream.model]
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    await pool.close()


async def test_many_that_join_and_leave_change_the_pool_once() -> None:
    pool = fleet_of("a", "b").pool
    version = pool.version
    pool.follow([client("c"), client("d")], ["a", "unknown"])
    assert pool.version == version + 1
    assert {replica.name for replica in pool.replicas()} == {"b", "c", "d"}
    assert {pool.ring.home(ring_point(b"%d" % n)) for n in range(200)} == {"b", "c", "d"}


@pytest.mark.parametrize(
    ("status", "expected"),
    [(200, Engine.OTHER), (404, Engine.OTHER), (500, None), (503, None)],
)
async def test_metrics_that_do_not_come_now_say_nothing_for_good(
    status: int, expected: Engine | None
) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 %d X\r\ncontent-length: 0\r\n\r\n" % status)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    timeouts = Timeouts(connect_s=5.0, head_s=5.0, idle_s=5.0, keep_alive_s=5.0)
    inspected = ReplicaClient("a", f"http://127.0.0.1:{port}", timeouts)
    load = await Inspector(5.0).foreign_load(inspected)
    assert (None if load is None else load.engine) is expected
    server.close()
    await server.wait_closed()
    assert await Inspector(5.0).foreign_load(inspected) is None, "it is gone"
    await inspected.close()
