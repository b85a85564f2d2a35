"""What the plan says of a full replica, the simulated engine does, event by event."""

import pytest

from pandal.planner.deployment import make_plan
from pandal.planner.roofline import Hardware
from pandal.simulation.closed_loop import closed_loop, planned_engine
from tests.pandal.planner.questions import question


@pytest.mark.parametrize("num_sequences", [4, 16, 48])
def test_rate_and_answer_time_of_a_full_replica(num_sequences: int) -> None:
    asked = question(max_batch=num_sequences)
    plan = make_plan(asked)
    assert plan.max_sequences == num_sequences
    serving = asked.serving
    used = Hardware(
        serving.gpu,
        plan.gpus_per_replica,
        serving.weight_precision,
        compute_ratio=serving.compute_ratio,
        bandwidth_ratio=serving.bandwidth_ratio,
    )
    simulated = closed_loop(planned_engine(serving, asked.load, used, num_sequences), 3000, 300)
    assert plan.figures["requests_per_s"] == pytest.approx(simulated.requests_per_s, rel=0.02)
    assert plan.figures["answer_s"] == pytest.approx(simulated.answer_s, rel=0.02)
