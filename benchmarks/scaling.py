"""The autoscaler beside public ones on every shipped scenario: what was kept, and where not.

    python -m benchmarks.scaling [NUM_SEEDS] [--oracle]

Figures are means over the seeds.  The scenarios marked * were not looked at while the policy's
figures were chosen.  Cases run side by side, one on each core.  ``--oracle`` also prints, of each
case that was not kept, what is possible there to whoever has read the trace.
"""

import argparse
import os
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product

from benchmarks.scaling_oracle import oracles_outcomes
from pandal.simulation.comparison import MAX_COST_RATIO, Case, contestants, scenario_case
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


def cases_of(name: str, cold_start_s: float, num_seeds: int) -> Sequence[Case]:
    return [
        scenario_case(SCENARIOS[name], cold_start_s=cold_start_s, seed=seed)
        for seed in range(1, num_seeds + 1)
    ]


def row(name: str, cold_start_s: float, num_seeds: int) -> Row:
    cases = cases_of(name, cold_start_s, num_seeds)
    outcomes, processor_s = [], []
    for of_one in zip(*map(contestants, cases), strict=True):
        began_s = time.process_time()
        outcomes.append(
            [Simulation(c.setting, make()).run() for c, make in zip(cases, of_one, strict=True)]
        )
        processor_s.append(time.process_time() - began_s)
    return Row(outcomes, processor_s)


def oracle_row(name: str, cold_start_s: float, num_seeds: int) -> Sequence[Outcome]:
    """The usage with the fewest late, and of those the cheapest; by seed."""
    tried = oracles_outcomes(cases_of(name, cold_start_s, num_seeds))
    return min(tried, key=lambda outcomes: (mean_late(outcomes), mean_hours(outcomes)))


def shortcomings(found: Row, index: int) -> str:
    """Of that autoscaler beside the best of all the others; killed streams aside."""
    one, best = found.outcomes[index], best_beside(found, index)
    is_late = mean_late(one) > mean_late(best)
    is_dear = mean_hours(one) > MAX_COST_RATIO * mean_hours(best)
    return f"{'late ' * is_late}{'dear' * is_dear}"


def best_beside(found: Row, index: int) -> Sequence[Outcome]:
    others = [outcomes for i, outcomes in enumerate(found.outcomes) if i != index]
    return min(others, key=lambda other: (mean_late(other), mean_hours(other)))


def is_kept(scenario: Scenario, cold_start_s: float, found: Row) -> bool:
    """Prints the row."""
    ours, best, lacks = found.outcomes[0], best_beside(found, 0), shortcomings(found, 0)
    num_killed = sum(outcome.num_killed for outcome in ours)
    print(
        f"{scenario.name + '*' * scenario.is_held_out:16s}{cold_start_s:5.0f} s  "
        f"ours {mean_late(ours):7.0f} late {mean_hours(ours):6.1f} GPU-h "
        f"{num_killed} killed   {best[0].autoscaler:14s} {mean_late(best):7.0f} late "
        f"{mean_hours(best):6.1f} GPU-h {sum(o.num_killed for o in best):4d} killed   {lacks}",
        flush=True,
    )
    return not (lacks or num_killed)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("num_seeds", nargs="?", type=int, default=1)
    parser.add_argument("--oracle", action="store_true")
    asked = parser.parse_args()
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        lost = compare(pool, asked.num_seeds)
        if asked.oracle:
            print_oracles(pool, lost, asked.num_seeds)


def compare(pool: ProcessPoolExecutor, num_seeds: int) -> list[tuple[Scenario, float]]:
    """Prints the table; the cases that were not kept."""
    cases = list(product(SCENARIOS.values(), COLD_STARTS_S))
    futures = [pool.submit(row, s.name, cold_start_s, num_seeds) for s, cold_start_s in cases]
    kept = [is_kept(*case, future.result()) for case, future in zip(cases, futures, strict=True)]
    for is_held_out, name in ((False, "kept"), (True, "held out")):
        group = [k for (s, _), k in zip(cases, kept, strict=True) if s.is_held_out == is_held_out]
        print(f"{name}: {sum(group)} of {len(group)}")
    rows = [future.result() for future in futures]
    print_all_beside_all(rows)
    print_costs(rows, len(cases) * num_seeds * DURATION_S / 3600)
    return [case for case, was_kept in zip(cases, kept, strict=True) if not was_kept]


def print_all_beside_all(rows: Sequence[Row]) -> None:
    """In how many cases each would keep the claim, and in how many without its killed streams."""
    told = []
    for index, outcomes in enumerate(rows[0].outcomes):
        good = [row.outcomes[index] for row in rows if not shortcomings(row, index)]
        num_clean = sum(all(o.num_killed == 0 for o in by_seed) for by_seed in good)
        told.append(f"{outcomes[0].autoscaler} {len(good)} ({num_clean} with none killed)")
    print(f"each beside the others, of {len(rows)}: {', '.join(told)}")


def print_oracles(
    pool: ProcessPoolExecutor, cases: Sequence[tuple[Scenario, float]], num_seeds: int
) -> None:
    futures = [
        pool.submit(oracle_row, s.name, cold_start_s, num_seeds) for s, cold_start_s in cases
    ]
    for (scenario, cold_start_s), future in zip(cases, futures, strict=True):
        found = future.result()
        print(
            f"{scenario.name:16s}{cold_start_s:5.0f} s  oracle {mean_late(found):7.0f} late "
            f"{mean_hours(found):6.1f} GPU-h"
        )


def print_costs(rows: Sequence[Row], num_hours: float) -> None:
    """Processor time of a trace hour, with the simulated fleet's own."""
    names = [outcomes[0].autoscaler for outcomes in rows[0].outcomes]
    costs = [sum(of_one) for of_one in zip(*(found.processor_s for found in rows), strict=True)]
    told = ", ".join(f"{name} {s / num_hours:.2f}" for name, s in zip(names, costs, strict=True))
    mean = sum(costs) / num_hours / len(costs)
    print(f"{sum(costs):.0f} s of processor time; a trace hour {mean:.2f} s: {told}")


if __name__ == "__main__":
    main()
