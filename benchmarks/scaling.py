"""The autoscaler beside public ones on every shipped scenario: what was kept, and where not.

    python benchmarks/scaling.py [NUM_SEEDS]

Figures are means over the seeds.  The scenarios marked * were not looked at while the policy's
figures were chosen.  Cases run side by side, one on each core.
"""

import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product

from pandal.simulation.comparison import MAX_COST_RATIO, contestants, scenario_case
from pandal.simulation.outcome import Outcome
from pandal.simulation.request import COLD_STARTS_S
from pandal.simulation.run import Simulation
from pandal.simulation.scenarios import DURATION_S, SCENARIOS, Scenario


@dataclass(frozen=True, slots=True)
class Row:
    """One scenario at one cold start; an autoscaler's outcomes by seed, ours first."""

    outcomes: Sequence[Sequence[Outcome]]
    processor_s: Sequence[float]  # of each autoscaler, over the seeds


def mean_late(outcomes: Sequence[Outcome]) -> float:
    return sum(outcome.num_late for outcome in outcomes) / len(outcomes)


def mean_hours(outcomes: Sequence[Outcome]) -> float:
    return sum(outcome.gpu_hours for outcome in outcomes) / len(outcomes)


def row(name: str, cold_start_s: float, num_seeds: int) -> Row:
    cases = [
        scenario_case(SCENARIOS[name], cold_start_s=cold_start_s, seed=seed)
        for seed in range(1, num_seeds + 1)
    ]
    makers = zip(*map(contestants, cases), strict=True)
    outcomes, processor_s = [], []
    for of_one in makers:
        began_s = time.process_time()
        outcomes.append(
            [Simulation(c.setting, make()).run() for c, make in zip(cases, of_one, strict=True)]
        )
        processor_s.append(time.process_time() - began_s)
    return Row(outcomes, processor_s)


def is_kept(scenario: Scenario, cold_start_s: float, found: Row) -> bool:
    """Prints the row."""
    ours, *others = found.outcomes
    best = min(others, key=lambda other: (mean_late(other), mean_hours(other)))
    is_late = mean_late(ours) > mean_late(best)
    is_dear = mean_hours(ours) > MAX_COST_RATIO * mean_hours(best)
    num_killed = sum(outcome.num_killed for outcome in ours)
    print(
        f"{scenario.name + '*' * scenario.is_held_out:16s}{cold_start_s:5.0f} s  "
        f"ours {mean_late(ours):7.0f} late {mean_hours(ours):6.1f} GPU-h "
        f"{num_killed} killed   {best[0].autoscaler:14s} {mean_late(best):7.0f} late "
        f"{mean_hours(best):6.1f} GPU-h {best[0].num_killed:4d} killed   "
        f"{'late ' * is_late}{'dear' * is_dear}",
        flush=True,
    )
    return not (is_late or is_dear or num_killed)


def main(num_seeds: int) -> None:
    kept = {False: [0, 0], True: [0, 0]}
    cases = list(product(SCENARIOS.values(), COLD_STARTS_S))
    rows = []
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        futures = [pool.submit(row, s.name, cold_start_s, num_seeds) for s, cold_start_s in cases]
        for (scenario, cold_start_s), future in zip(cases, futures, strict=True):
            found = future.result()
            rows.append(found)
            kept[scenario.is_held_out][0] += is_kept(scenario, cold_start_s, found)
            kept[scenario.is_held_out][1] += 1
    print(
        f"kept: {kept[False][0]} of {kept[False][1]}; held out {kept[True][0]} of {kept[True][1]}"
    )
    print_costs(rows, len(cases) * num_seeds * DURATION_S / 3600)


def print_costs(rows: Sequence[Row], num_hours: float) -> None:
    """Processor time of a trace hour, with the simulated fleet's own."""
    names = [outcomes[0].autoscaler for outcomes in rows[0].outcomes]
    costs = [sum(of_one) for of_one in zip(*(found.processor_s for found in rows), strict=True)]
    told = ", ".join(f"{name} {s / num_hours:.2f}" for name, s in zip(names, costs, strict=True))
    mean = sum(costs) / num_hours / len(costs)
    print(f"{sum(costs):.0f} s of processor time; a trace hour {mean:.2f} s: {told}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
