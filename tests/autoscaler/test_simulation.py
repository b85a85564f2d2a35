"""The simulator: exact where it can be computed by hand, and the same twice."""

import json
from pathlib import Path

import pytest

from autoscaler.plan import Action, SetCount
from autoscaler.pool import Phase, PoolState
from pandal.errors import BadOption
from pandal.simulation.arrivals import Arrival, Lengths, generated, read_csv
from pandal.simulation.cluster import ColdStart
from pandal.simulation.comparison import contestants, scenario_case
from pandal.simulation.engine import Engine, EngineModel
from pandal.simulation.report import sparkline
from pandal.simulation.request import SimulationRequest, cases
from pandal.simulation.run import NodeFailure, Setting, Simulation
from pandal.simulation.scenarios import SCENARIOS
from tests.autoscaler.traces import shortened

MODEL = EngineModel(
    num_slots=2, step_base_s=0.08, step_per_sequence_s=0.01, prefill_tokens_per_s=1000.0
)


class Script:
    """Orders what it is told, and keeps what it was shown."""

    name = "script"
    period_s = 10.0

    def __init__(self, *counts: int) -> None:
        self._counts = list(counts)
        self.seen: list[PoolState] = []

    def tick(self, state: PoolState) -> list[Action]:
        self.seen.append(state)
        (found,) = state.variants
        count = self._counts.pop(0) if self._counts else found.num_ordered
        return [] if count == found.num_ordered else [SetCount("gpu", found.num_ordered, count)]


def setting(*arrivals: Arrival, **changes: object) -> Setting:
    fields: dict[str, object] = {
        "arrivals": arrivals, "duration_s": 200.0, "model": MODEL, "cold_start": ColdStart(30.0),
        "num_gpus": 4, "num_begin": 1, "ttft_slo_s": 2.0,
    }  # fmt: skip
    return Setting(**{**fields, **changes})  # type: ignore[arg-type]  # checked by the dataclass


def test_two_sequences_share_steps_and_a_prefill_stops_both() -> None:
    engine = Engine(MODEL)
    engine.start(Arrival(0.0, 100, 20), 0.0)
    assert engine.next_end_s() == pytest.approx(0.1 + 20 * 0.09)
    engine.start(Arrival(1.0, 100, 50), 1.0)  # ten tokens done by then
    assert engine.next_end_s() == pytest.approx(1.0 + 0.1 + 10 * 0.10)
    assert engine.end_one(2.1).output_tokens == 20
    assert engine.next_end_s() == pytest.approx(2.1 + 40 * 0.09)
    assert engine.tokens_done(2.1) == pytest.approx((30, 200))


def test_a_full_batch_waits_and_memory_counts_too() -> None:
    engine = Engine(MODEL)
    for _ in range(2):
        assert engine.has_room(Arrival(0.0, 10, 10))
        engine.start(Arrival(0.0, 10, 10), 0.0)
    assert not engine.has_room(Arrival(0.0, 10, 10))
    roomy = Engine(EngineModel(kv_tokens=100))
    roomy.start(Arrival(0.0, 50, 40), 0.0)
    assert not roomy.has_room(Arrival(0.0, 10, 10))


def test_a_stream_is_killed_after_its_grace_and_not_before() -> None:
    long, short = Arrival(1.0, 0, 1000), Arrival(2.0, 0, 100)
    busy = setting(long, short, num_begin=2)
    outcome = Simulation(busy, Script(1)).run()
    assert outcome.num_killed <= 1
    assert Simulation(busy, Script(2)).run().num_killed == 0
    both_gone = Simulation(busy, Script(0)).run()
    assert both_gone.num_killed == 1  # the short one ended within the thirty seconds
    assert both_gone.gpu_hours < 0.025


def test_a_pod_beyond_the_gpus_is_unschedulable_and_costs_nothing() -> None:
    script = Script(6)
    outcome = Simulation(setting(), script).run()
    phases = [r.phase for r in script.seen[-1].replicas]
    assert phases.count(Phase.READY) == 4
    assert phases.count(Phase.UNSCHEDULABLE) == 2
    assert outcome.most_gpus == 4


def test_pods_of_a_failed_node_are_made_again_and_start_cold() -> None:
    script = Script()
    failing = setting(num_begin=2, failures=(NodeFailure(95.0, 0.5),))
    Simulation(failing, script).run()
    num_ready = [sum(r.phase is Phase.READY for r in state.replicas) for state in script.seen]
    assert num_ready[8:10] == [2, 1]
    assert num_ready[-1] == 2


def test_blindness_is_unknown_and_not_zero() -> None:
    script = Script()
    Simulation(setting(Arrival(1.0, 10, 500), blind_s=(50.0, 100.0)), script).run()
    assert script.seen[5].demand is None
    assert all(r.load is None for r in script.seen[5].replicas)
    assert script.seen[0].demand is None, "a rate needs two looks"
    assert script.seen[1].demand is not None
    assert script.seen[-1].demand is not None


def test_the_same_seed_gives_the_same_figures() -> None:
    case, again = (
        shortened(scenario_case(SCENARIOS["burst"], cold_start_s=60.0, seed=3), 1_200.0)
        for _ in range(2)
    )
    for make, remake in zip(contestants(case), contestants(again), strict=True):
        assert Simulation(case.setting, make()).run() == Simulation(again.setting, remake()).run()


def test_thinning_gives_the_rate_that_was_asked_for() -> None:
    found = generated(
        lambda t: 2.0 if t < 1000 else 6.0, duration_s=2000.0, seed=1, lengths=Lengths()
    )
    early = sum(arrival.at_s < 1000 for arrival in found)
    assert early == pytest.approx(2000, rel=0.1)
    assert len(found) - early == pytest.approx(6000, rel=0.1)
    mean = sum(arrival.output_tokens for arrival in found) / len(found)
    assert mean == pytest.approx(400, rel=0.05)


def test_a_trace_is_read_and_begins_at_zero(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("at_s,prompt_tokens,output_tokens\n102.5,10,20\n100,1,2\n")
    assert read_csv(trace) == [Arrival(0.0, 1, 2), Arrival(2.5, 10, 20)]
    trace.write_text("at,prompt\n1,2\n")
    with pytest.raises(BadOption, match=r"--trace: .*no column .at_s."):
        read_csv(trace)


@pytest.mark.parametrize(
    "changes",
    [{"scenarios": ("nope",)}, {"cold_starts_s": (0.0,)}, {"num_begin": 0}],
    ids=["scenario", "cold start", "replicas"],
)
def test_a_request_that_cannot_be_is_refused(changes: dict[str, object]) -> None:
    fields: dict[str, object] = {
        "scenarios": (), "trace": None, "cold_starts_s": (), "num_begin": 2, "seed": 1,
    }  # fmt: skip
    with pytest.raises(BadOption, match=r"expected|none of"):
        cases(SimulationRequest(**{**fields, **changes}))  # type: ignore[arg-type]


def test_a_line_of_bars_tells_nothing_from_a_little() -> None:
    assert sparkline([0, 1, 30, 60], 60) == " ▁▄█"
    assert json.dumps(sparkline([], 60)) == '""'
