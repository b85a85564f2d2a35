"""Signals that ask for one more though demand does not explain it: late tokens and full caches."""

from autoscaler.decision import Code
from autoscaler.pool import TimeToFirstToken
from tests.autoscaler.pools import Scene, policy, replicas


def test_slow_first_tokens_ask_for_one_more_on_enough_evidence() -> None:
    scene = Scene(ordered=4)
    scene.obey(3.0, num_looks=30)
    count = scene.ordered
    busy = replicas(count, num_running=8)
    scene.ttft = TimeToFirstToken(p95_s=19.5, num_samples=3)
    assert all(scene.look(3.0, busy).num_wanted == count for _ in range(10))
    scene.ttft = TimeToFirstToken(p95_s=19.5, num_samples=200)
    wanted = [scene.look(3.0, busy).num_wanted for _ in range(5)]
    assert wanted == [count] * 4 + [count + 1]
    assert Code.TTFT_GUARD in scene.last.codes  # type: ignore[union-attr]


def test_slow_first_tokens_of_an_idle_fleet_order_nothing() -> None:
    scene = Scene(ordered=6)
    scene.obey(0.5, num_looks=20)
    scene.ttft = TimeToFirstToken(p95_s=19.5, num_samples=200)
    count = scene.ordered
    assert all(scene.look(0.5).num_wanted == count for _ in range(40))


def test_lateness_that_nobody_saw_again_does_not_hold_an_idle_fleet_for_ever() -> None:
    scene = Scene(ordered=6)
    scene.obey(5.0, num_looks=60)
    high = scene.ordered
    scene.ttft = TimeToFirstToken(p95_s=19.5, num_samples=200)
    scene.look(5.0)
    scene.ttft = None  # an empty window: nobody has asked
    assert scene.look(0.2).num_wanted == high  # some are in flight: it may still be so
    assert scene.memory.late_since_s is not None
    assert scene.obey(0.0, num_looks=100).num_wanted == 1
    assert scene.memory.late_since_s is None


LATE, EARLY = (TimeToFirstToken(p95_s, num_samples=200) for p95_s in (19.5, 0.2))


def test_what_clients_wait_for_counts_and_not_what_engines_see() -> None:
    scene = Scene(policy(is_told_by_gateway=True), ordered=4)
    scene.obey(3.0, num_looks=30)
    count = scene.ordered
    busy = replicas(count, num_running=8)
    scene.ttft, scene.gateway_ttft = EARLY, TimeToFirstToken(p95_s=19.5, num_samples=3)
    assert all(scene.look(3.0, busy).num_wanted == count for _ in range(10))
    scene.gateway_ttft = LATE
    wanted = [scene.look(3.0, busy).num_wanted for _ in range(5)]
    assert wanted == [count] * 4 + [count + 1]
    scene.ttft, scene.gateway_ttft = LATE, EARLY
    scene.look(3.0, busy)
    assert scene.memory.late_since_s is None


def test_while_the_gateway_is_silent_lateness_can_begin_and_not_end() -> None:
    scene = Scene(policy(is_told_by_gateway=True), ordered=4)
    scene.obey(3.0, num_looks=30)
    scene.ttft = EARLY
    scene.look(3.0)
    assert scene.memory.late_since_s is None
    scene.ttft = LATE
    scene.look(3.0)
    since_s = scene.memory.late_since_s
    assert since_s is not None
    scene.ttft = EARLY
    scene.look(3.0)
    assert scene.memory.late_since_s == since_s
    scene.gateway_ttft = EARLY
    scene.look(3.0)
    assert scene.memory.late_since_s is None


def test_full_caches_ask_for_one_more() -> None:
    scene = Scene(ordered=4)
    scene.obey(3.0, num_looks=30)
    count = scene.ordered
    full = replicas(count, num_running=8, kv_cache_usage=0.97)
    assert [scene.look(3.0, full).num_wanted for _ in range(5)][-1] == count + 1
