"""The same requests, cold starts and chances for every autoscaler, and who did best."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from autoscaler.policy import PoolPolicy, Variant
from autoscaler.pool import work_tokens
from pandal.simulation.arrivals import Arrival, Lengths, generated
from pandal.simulation.autoscalers import Hpa, Kpa, Pandal, SupplyDemand
from pandal.simulation.cluster import ColdStart
from pandal.simulation.engine import EngineModel
from pandal.simulation.outcome import Outcome
from pandal.simulation.run import VARIANT, Autoscaler, Setting, Simulation
from pandal.simulation.scenarios import DURATION_S, Scenario

MAX_GPUS: Final = 60
TTFT_SLO_S: Final = 2.0
DRAIN_DEADLINE_S: Final = 600.0
MAX_COST_RATIO: Final = 1.1
_LEAST_GPU_HOURS: Final = 0.05  # less is shown as none: no difference of a trace so short
_BEGIN_USAGE: Final = 0.7  # of the replicas that are there at the beginning
_HPA_WAITING: Final = 5.0  # requests per replica
_CONCURRENCY_RATIO: Final = 0.7  # of the slots; for those that count what runs


@dataclass(frozen=True, slots=True)
class Case:
    """What is simulated, whoever scales."""

    name: str
    setting: Setting
    cold_start_s: float
    planned_tokens_per_s: float  # work of a full replica, with the lengths that were expected


def scenario_case(scenario: Scenario, *, cold_start_s: float, seed: int) -> Case:
    model, lengths = EngineModel(), Lengths()
    arrivals = generated(
        scenario.rate_per_s,
        duration_s=DURATION_S,
        seed=seed,
        lengths=lengths,
        length_ratio=scenario.output_ratio,
    )
    per_replica = model.requests_per_s(lengths.mean_prompt_tokens, lengths.mean_output_tokens)
    setting = Setting(
        arrivals=arrivals,
        duration_s=DURATION_S,
        model=model,
        cold_start=ColdStart(cold_start_s),
        num_gpus=MAX_GPUS,
        num_begin=math.ceil(scenario.rate_per_s(0.0) / per_replica / _BEGIN_USAGE),
        ttft_slo_s=TTFT_SLO_S,
        failures=scenario.failures,
        blind_s=scenario.blind_s,
        seed=seed,
    )
    planned = _planned(model, lengths.mean_prompt_tokens, lengths.mean_output_tokens)
    return Case(scenario.name, setting, cold_start_s, planned)


def trace_case(
    name: str, arrivals: Sequence[Arrival], *, cold_start_s: float, num_begin: int, seed: int
) -> Case:
    """A trace from a file; its end is the last arrival's and a little, its lengths are expected."""
    model = EngineModel()
    setting = Setting(
        arrivals=arrivals,
        duration_s=arrivals[-1].at_s + 60.0,
        model=model,
        cold_start=ColdStart(cold_start_s),
        num_gpus=MAX_GPUS,
        num_begin=num_begin,
        ttft_slo_s=TTFT_SLO_S,
        seed=seed,
    )
    mean_prompt = sum(arrival.prompt_tokens for arrival in arrivals) / len(arrivals)
    mean_output = sum(arrival.output_tokens for arrival in arrivals) / len(arrivals)
    return Case(name, setting, cold_start_s, _planned(model, mean_prompt, mean_output))


def _planned(model: EngineModel, prompt_tokens: float, output_tokens: float) -> float:
    """In the observer's unit of work, in which it is compared with what was observed."""
    work = work_tokens(generated=output_tokens, prompt=prompt_tokens)
    return model.requests_per_s(prompt_tokens, output_tokens) * work


def contestants(case: Case) -> list[Callable[[], Autoscaler]]:
    """Ours first.  All begin knowing nothing but the replica's size and the cold start."""
    model = case.setting.model
    most, concurrency = case.setting.num_gpus, _CONCURRENCY_RATIO * model.num_slots
    return [
        lambda: Pandal(policy_for(case), DRAIN_DEADLINE_S),
        lambda: Hpa("hpa waiting", _HPA_WAITING, counts_running=False, most=most),
        lambda: Hpa("hpa in flight", concurrency, counts_running=True, most=most),
        lambda: Kpa(concurrency, most),
        lambda: SupplyDemand(model.num_slots, most),
    ]


def policy_for(case: Case) -> PoolPolicy:
    """The shipped defaults: nothing is chosen for a scenario."""
    model = case.setting.model
    variant = Variant(
        VARIANT,
        max_replicas=case.setting.num_gpus,
        num_slots=model.num_slots,
        tokens_per_s=case.planned_tokens_per_s,
        cold_start_s=case.cold_start_s,
    )
    return PoolPolicy(
        name="simulated",
        variants=(variant,),
        max_replicas=case.setting.num_gpus,
        is_told_by_gateway=True,
        ttft_slo_s=case.setting.ttft_slo_s,
    )


@dataclass(frozen=True, slots=True)
class Comparison:
    case: Case
    outcomes: tuple[Outcome, ...]  # ours first

    @property
    def ours(self) -> Outcome:
        return self.outcomes[0]

    @property
    def best_other(self) -> Outcome:
        return min(self.outcomes[1:], key=lambda other: (other.num_late, other.gpu_hours))

    @property
    def shortcomings(self) -> tuple[str, ...]:
        """What we claim and did not keep here; empty: all kept."""
        ours, best = self.ours, self.best_other
        found = []
        if ours.num_late > best.num_late:
            found.append(f"{ours.num_late} late, {best.autoscaler} {best.num_late}")
        surplus = ours.gpu_hours - MAX_COST_RATIO * best.gpu_hours
        if surplus >= _LEAST_GPU_HOURS:
            found.append(f"{ours.gpu_hours:.1f} GPU-hours, {best.autoscaler} {best.gpu_hours:.1f}")
        if ours.num_killed > 0:
            found.append(f"{ours.num_killed} streams killed")
        return tuple(found)


def compared(case: Case) -> Comparison:
    made = contestants(case)
    return Comparison(case, tuple(Simulation(case.setting, make()).run() for make in made))
