"""Reports from the field about scalers and charts, each with the test that holds us to better.

Paraphrased from public trackers: Kubernetes, Knative, KEDA, Ray, SkyPilot, AIBrix, llm-d, Dynamo,
Helm and others.  A report whose test is renamed or deleted fails here.
"""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from autoscaler.decision import Code
from autoscaler.pool import EngineLoad, Phase, Replica
from tests.autoscaler.pools import VARIANT, Scene, policy

TESTS = Path(__file__).parent.parent

HELD: dict[str, tuple[str, str]] = {  # report -> file and test
    "missing gauges default to zero, a full pod looks empty": (
        "autoscaler/test_sources.py", "a_failure_of_one_is_unknown_for_that_one_only"),
    "series of deleted pods are counted for a minute": (
        "autoscaler/test_sources.py", "series_of_a_deleted_pod_are_not_looked_at"),
    "a queue and a slow start order thousands of pods at constant demand": (
        "autoscaler/test_field_scenarios.py",
        "ten_minutes_without_metrics_and_slow_starts_change_nothing_for_users"),
    "the count doubles at each look while pods are pending": (
        "autoscaler/test_decide.py", "ordered_capacity_is_not_ordered_again_while_it_starts"),
    "one pod that is not ready fails the whole look": (
        "autoscaler/test_sources.py", "a_failure_of_one_is_unknown_for_that_one_only"),
    "unschedulable pods count as full, and nothing ever goes down": (
        "autoscaler/test_decide.py", "pending_for_want_of_gpus_goes_first_and_at_once"),
    "a rollout's surge pods scale up": (
        "autoscaler/test_decide.py", "surge_pods_of_a_rollout_are_not_capacity"),
    "what was ordered is taken back because it is not ready yet": (
        "autoscaler/test_arriving.py",
        "what_was_ordered_for_a_backlog_stays_ordered_until_it_is_there"),
    "no metrics means the minimum": (
        "autoscaler/test_decide.py", "unknown_demand_holds_and_the_window_does_not_age"),
    "pods that crash are multiplied and never removed": (
        "autoscaler/test_decide.py",
        "replicas_that_never_start_are_not_capacity_and_not_multiplied"),
    "a busy pod is the victim and an idle one stays": (
        "autoscaler/test_plan.py", "the_least_loaded_is_cordoned_and_nothing_is_deleted_yet"),
    "the default grace period cuts streams": (
        "chart/test_pods.py", "the_grace_is_longer_than_what_a_pod_may_need"),
    "a queue on one replica is averaged away": (
        "autoscaler/test_field_reports.py", "a_queue_on_one_replica_is_not_averaged_away"),
    "running replicas are killed before starting ones": (
        "autoscaler/test_plan.py", "one_that_starts_goes_before_one_that_serves_and_at_once"),
    "the last sample decides, one jitter resets a counter": (
        "autoscaler/test_decide.py", "one_odd_look_orders_nothing"),
    "hundreds go in one step, and the dead are still routed to": (
        "autoscaler/test_decide.py", "down_waits_for_the_window_and_goes_in_steps"),
    "rounding of a smoothing factor ends at minus one": (
        "autoscaler/test_decide.py", "any_history_stays_within_the_bounds_and_repeats_itself"),
    "an outage at the start leaves fewer than the minimum": (
        "autoscaler/test_decide.py", "unknown_demand_still_keeps_the_floor"),
    "two and one in turn at constant load": (
        "autoscaler/test_decide.py", "steady_demand_settles_and_stays"),
    "a person's count is compared with a stale plan": (
        "autoscaler/test_decide.py",
        "a_persons_count_is_respected_for_a_while_and_bounds_are_not_negotiable"),
    "a source that cannot be reached reads as zero": (
        "autoscaler/test_prometheus.py", "what_is_no_answer_is_unknown"),
    "a fallback is only for some kinds of failure": (
        "autoscaler/test_decide.py", "silent_replicas_stop_the_way_down_and_not_the_way_up"),
    "no fallback at zero": (
        "autoscaler/test_decide.py", "an_outage_at_zero_neither_wakes_nor_breaks"),
    "a target above what a gauge can show never scales": (
        "autoscaler/test_field_reports.py", "replicas_of_one_slot_grow_with_demand"),
    "the ceiling is above the GPUs that there are": (
        "autoscaler/test_kubernetes_crashes.py",
        "gpus_that_are_not_there_are_ordered_once_and_given_back_first"),
    "a counter is read as a gauge, its first sample as a rate": (
        "autoscaler/test_sources.py", "a_restarted_engine_has_no_rate_until_its_second_look"),
    "a count that was cut by a bound is remembered as what was needed": (
        "autoscaler/test_field_reports.py", "what_a_bound_cut_off_is_not_remembered_as_the_need"),
    "the gateway's queue hides demand from engines' metrics": (
        "autoscaler/test_sources.py", "the_gateway_counts_who_asks_of_a_pool_at_zero"),
    "nobody wakes a pool at zero": (
        "autoscaler/test_kubernetes_crashes.py",
        "a_pool_at_zero_is_woken_by_who_asks_at_the_gateway"),
    "a changed spec drops a pool under load": (
        "autoscaler/test_kubernetes_crashes.py", "a_changed_resource_keeps_what_was_learned"),
    "a source that tells later is not looked at again": (
        "autoscaler/test_sources.py", "a_gateway_that_comes_and_goes_is_no_new_demand"),
    "a leader that lost its lease goes on": ("autoscaler/test_lease.py", "two_never_both_act"),
    "a lease is not given back": (
        "autoscaler/test_lease.py", "who_resigns_is_followed_at_once"),
    "a watch ends for ever when history is compacted": (
        "autoscaler/test_reflector.py", "a_history_that_is_gone_means_a_new_list"),
    "rights to leases and scales are missing in the chart": (
        "kubernetes/test_chart.py", "from_an_empty_namespace_and_back"),
    "an upgrade resets the count": (
        "kubernetes/test_switched_on.py", "no_replica_goes_when_scaling_is_switched_on"),
    "metric names with a colon come with an underscore": (
        "autoscaler/test_sources.py", "every_dialect_says_the_same"),
    "a probe kills a pod that loads its model": (
        "chart/test_pods.py", "a_start_may_take_its_time"),
    "long streams are no requests to counters of finished ones": (
        "autoscaler/test_sources.py", "long_streams_count_when_they_begin"),
    "a percentile of three samples is believed": (
        "autoscaler/test_guards.py", "slow_first_tokens_ask_for_one_more_on_enough_evidence"),
    "engines' first tokens do not know the wait before them": (
        "autoscaler/test_guards.py", "what_clients_wait_for_counts_and_not_what_engines_see"),
    "two autoscalers fight for one count": (
        "kubernetes/test_conflicts.py",
        "with_a_horizontal_pod_autoscaler_beside_it_nothing_is_written"),
    "half an hour until anything goes down": (
        "autoscaler/test_field_scenarios.py", "a_fall_in_demand_kills_no_stream"),
}  # fmt: skip


@pytest.mark.parametrize("report", HELD)
def test_each_report_has_its_test(report: str) -> None:
    file, test = HELD[report]
    assert re.search(rf"def test_{test}\(", (TESTS / file).read_text(encoding="utf-8"))


def test_a_queue_on_one_replica_is_not_averaged_away() -> None:
    scene = Scene(ordered=4)
    scene.obey(3.0, num_looks=50)
    loads = [EngineLoad(10, 600, 0.5)] + [EngineLoad(2, 0, 0.1)] * (scene.ordered - 1)
    pods = tuple(Replica(f"r{i}", Phase.READY, load) for i, load in enumerate(loads))
    decision = scene.look(3.0, pods, num_in_flight=616)
    assert Code.BACKLOG in decision.codes
    assert decision.num_wanted > scene.ordered


def test_replicas_of_one_slot_grow_with_demand() -> None:
    single = replace(VARIANT, num_slots=1, tokens_per_s=10.0)
    scene = Scene(policy(variants=(single,)), ordered=1)
    pods = (Replica("r0", Phase.READY, EngineLoad(1, 0, 0.1)),)
    wanted = [scene.look(1.0, pods, num_queued=9).num_wanted for _ in range(4)]
    assert wanted[-1] >= 10, "ten seconds a request, one a second"


def test_what_a_bound_cut_off_is_not_remembered_as_the_need() -> None:
    scene = Scene(policy(max_replicas=4), ordered=2)
    assert scene.obey(9.0, num_looks=30).num_wanted == 4
    scene.policy = policy(max_replicas=16)
    assert scene.obey(9.0, num_looks=3).num_wanted > 9
