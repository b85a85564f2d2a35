"""What the plan says of a full replica, the simulated engine does, event by event."""

from dataclasses import dataclass

import pytest

from pandal.planner.deployment import make_plan
from pandal.planner.question import Question
from pandal.planner.replica_speed import decode
from pandal.planner.roofline import Hardware
from pandal.simulation.arrivals import Arrival
from pandal.simulation.engine import Engine, EngineModel
from tests.pandal.planner.questions import question

NUM_WARM_UP_ROUNDS, NUM_ROUNDS = 5, 40


def engine_model(asked: Question, num_sequences: int) -> EngineModel:
    """The plan's replica: its step as a line through two batches, and its rate of prefill."""
    serving, load = asked.serving, asked.load
    used = Hardware(
        serving.gpu,
        make_plan(asked).gpus_per_replica,
        serving.weight_precision,
        compute_ratio=serving.compute_ratio,
        bandwidth_ratio=serving.bandwidth_ratio,
    )
    alone_s = decode(serving, load, used, 1)[1].value
    full_s = decode(serving, load, used, num_sequences)[1].value
    per_sequence_s = (full_s - alone_s) / (num_sequences - 1)
    return EngineModel(
        num_slots=num_sequences,
        step_base_s=alone_s - per_sequence_s,
        step_per_sequence_s=per_sequence_s,
        prefill_tokens_per_s=load.prompt_tokens / make_plan(asked).figures["prefill_s"],
        kv_tokens=10**9,
    )


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    requests_per_s: float
    answer_s: float


def closed_loop(model: EngineModel, prompt_tokens: int, output_tokens: int) -> ClosedLoop:
    """Each request that ends is followed by another; the first ones are of all lengths."""
    engine = Engine(model)
    started_s: dict[int, float] = {}
    for number in range(model.num_slots):
        spread = 1 + number * output_tokens // model.num_slots
        engine.start(arrival(number, prompt_tokens, spread), 0.0)
        started_s[number] = 0.0
    answers_s: list[float] = []
    num_ends, counted_from_s, now_s = 0, 0.0, 0.0
    while num_ends < NUM_ROUNDS * model.num_slots:
        end_s = engine.next_end_s()
        assert end_s is not None
        now_s = end_s
        ended = engine.end_one(now_s)
        num_ends += 1
        if num_ends == NUM_WARM_UP_ROUNDS * model.num_slots:
            counted_from_s = now_s
        elif counted_from_s:
            answers_s.append(now_s - started_s[int(ended.at_s)])
        number = model.num_slots + num_ends
        started_s[number] = now_s
        engine.start(arrival(number, prompt_tokens, output_tokens), now_s)
    return ClosedLoop(len(answers_s) / (now_s - counted_from_s), sum(answers_s) / len(answers_s))


def arrival(number: int, prompt_tokens: int, output_tokens: int) -> Arrival:
    """Its time of arrival is its number: a closed loop has no other."""
    return Arrival(float(number), prompt_tokens, output_tokens)


@pytest.mark.parametrize("num_sequences", [4, 16, 48])
def test_rate_and_answer_time_of_a_full_replica(num_sequences: int) -> None:
    asked = question(max_batch=num_sequences)
    plan = make_plan(asked)
    assert plan.max_sequences == num_sequences
    simulated = closed_loop(engine_model(asked, num_sequences), 3000, 300)
    assert plan.figures["requests_per_s"] == pytest.approx(simulated.requests_per_s, rel=0.02)
    assert plan.figures["answer_s"] == pytest.approx(simulated.answer_s, rel=0.02)
