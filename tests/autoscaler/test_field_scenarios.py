"""Reports from the field, replayed on the virtual clock against the shipped policy.

Each is a way in which a public autoscaler has failed; the closed loop must not.
"""

from pandal.simulation.comparison import (
    DRAIN_DEADLINE_S,
    Case,
    Comparison,
    contestants,
    policy_for,
    scenario_case,
)
from pandal.simulation.outcome import Outcome
from pandal.simulation.run import Simulation
from pandal.simulation.scenarios import SCENARIOS
from tests.autoscaler.traces import shortened


def ours(case: Case) -> Outcome:
    return Simulation(case.setting, contestants(case)[0]()).run()


def test_a_fall_in_demand_kills_no_stream() -> None:
    case = shortened(scenario_case(SCENARIOS["drop"], cold_start_s=60.0, seed=1), 3_600.0)
    outcome = ours(case)
    assert outcome.num_killed == 0
    assert outcome.gpus_over_time[-1] < outcome.most_gpus / 2


def test_ten_minutes_without_metrics_and_slow_starts_change_nothing_for_users() -> None:
    """Pending replicas are supply: constant demand drove others to thousands of pods."""
    case = shortened(scenario_case(SCENARIOS["blind"], cold_start_s=420.0, seed=1), 3_600.0)
    outcome = ours(case)
    assert outcome.most_gpus <= 18
    assert outcome.num_late == 0


def test_more_than_waiting_requests_alone_is_looked_at() -> None:
    """A ratio of what waits is zero over the whole healthy range."""
    case = shortened(scenario_case(SCENARIOS["step"], cold_start_s=60.0, seed=1), 2_400.0)
    on_waiting = Simulation(case.setting, contestants(case)[1]()).run()
    assert ours(case).num_late * 2 < on_waiting.num_late
    assert ours(case).gpu_hours < on_waiting.gpu_hours


def test_a_comparison_says_what_was_not_kept() -> None:
    case = shortened(scenario_case(SCENARIOS["burst"], cold_start_s=60.0, seed=1), 600.0)
    outcome = ours(case)
    better = Outcome(
        **{
            **{name: getattr(outcome, name) for name in Outcome.__dataclass_fields__},
            "autoscaler": "other", "num_late": -1, "gpu_hours": 0.01,
        }
    )  # fmt: skip
    assert len(Comparison(case, (outcome, better)).shortcomings) == 2
    assert Comparison(case, (better, outcome)).shortcomings == ()


def test_the_simulated_policy_is_the_shipped_one() -> None:
    case = scenario_case(SCENARIOS["step"], cold_start_s=60.0, seed=1)
    rules = policy_for(case)
    assert rules.urgency == type(rules).__dataclass_fields__["urgency"].default
    assert DRAIN_DEADLINE_S >= 600
