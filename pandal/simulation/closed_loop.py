"""One simulated replica with all its places taken, all the time: what a plan says of a full one.

Each request that ends is followed by another; the first ones are of all lengths, as the requests
are that an observer meets.
"""

from dataclasses import dataclass
from typing import Final

from pandal.planner.question import Load, Serving
from pandal.planner.replica_speed import decode, prefill_flop
from pandal.planner.roofline import Hardware, prefill_s
from pandal.simulation.arrivals import Arrival
from pandal.simulation.engine import Engine, EngineModel

_NUM_WARM_UP_ROUNDS: Final = 5
_NUM_ROUNDS: Final = 40
_NO_LIMIT_TOKENS: Final = 10**9


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    requests_per_s: float
    answer_s: float


def planned_engine(serving: Serving, load: Load, used: Hardware, num_slots: int) -> EngineModel:
    """The plan's replica: its step as a line through two batches, and its rate of prefill."""
    alone_s = decode(serving, load, used, 1)[1].value
    full_s = decode(serving, load, used, num_slots)[1].value
    per_sequence_s = (full_s - alone_s) / max(1, num_slots - 1)
    return EngineModel(
        num_slots=num_slots,
        step_base_s=alone_s - per_sequence_s,
        step_per_sequence_s=per_sequence_s,
        prefill_tokens_per_s=load.prompt_tokens
        / prefill_s(prefill_flop(serving, load), used).value,
        kv_tokens=_NO_LIMIT_TOKENS,
    )


def closed_loop(model: EngineModel, prompt_tokens: int, output_tokens: int) -> ClosedLoop:
    engine = Engine(model)
    started_s: dict[int, float] = {}
    for number in range(model.num_slots):
        spread = 1 + number * output_tokens // model.num_slots
        engine.start(_arrival(number, prompt_tokens, spread), 0.0)
        started_s[number] = 0.0
    answers_s: list[float] = []
    num_ends, counted_from_s, now_s = 0, 0.0, 0.0
    while num_ends < _NUM_ROUNDS * model.num_slots:
        end_s = engine.next_end_s()
        assert end_s is not None, "it is never empty"
        now_s = end_s
        ended = engine.end_one(now_s)
        num_ends += 1
        if num_ends == _NUM_WARM_UP_ROUNDS * model.num_slots:
            counted_from_s = now_s
        elif counted_from_s:
            answers_s.append(now_s - started_s[int(ended.at_s)])
        number = model.num_slots + num_ends
        started_s[number] = now_s
        engine.start(_arrival(number, prompt_tokens, output_tokens), now_s)
    return ClosedLoop(len(answers_s) / (now_s - counted_from_s), sum(answers_s) / len(answers_s))


def _arrival(number: int, prompt_tokens: int, output_tokens: int) -> Arrival:
    """Its time of arrival is its number: a closed loop has no other."""
    return Arrival(float(number), prompt_tokens, output_tokens)
