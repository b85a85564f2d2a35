"""The autoscaler beside public ones on every shipped scenario: what was kept, and where not.

    python benchmarks/scaling.py [NUM_SEEDS]

Figures are means over the seeds.  The scenarios marked * were not looked at while the policy's
figures were chosen.
"""

import sys
import time

from pandal.simulation.comparison import MAX_COST_RATIO, compared, scenario_case
from pandal.simulation.outcome import Outcome
from pandal.simulation.request import COLD_STARTS_S
from pandal.simulation.scenarios import SCENARIOS


def mean_late(outcomes: list[Outcome]) -> float:
    return sum(outcome.num_late for outcome in outcomes) / len(outcomes)


def mean_hours(outcomes: list[Outcome]) -> float:
    return sum(outcome.gpu_hours for outcome in outcomes) / len(outcomes)


def main(num_seeds: int) -> None:
    kept = {False: [0, 0], True: [0, 0]}
    began = time.process_time()
    for scenario in SCENARIOS.values():
        for cold_start_s in COLD_STARTS_S:
            runs = [
                compared(scenario_case(scenario, cold_start_s=cold_start_s, seed=seed)).outcomes
                for seed in range(1, num_seeds + 1)
            ]
            ours, *others = [list(column) for column in zip(*runs, strict=True)]
            best = min(others, key=lambda found: (mean_late(found), mean_hours(found)))
            is_late = mean_late(ours) > mean_late(best)
            is_dear = mean_hours(ours) > MAX_COST_RATIO * mean_hours(best)
            num_killed = sum(outcome.num_killed for outcome in ours)
            kept[scenario.is_held_out][0] += not (is_late or is_dear or num_killed)
            kept[scenario.is_held_out][1] += 1
            print(
                f"{scenario.name + '*' * scenario.is_held_out:16s}{cold_start_s:5.0f} s  "
                f"ours {mean_late(ours):7.0f} late {mean_hours(ours):6.1f} GPU-h "
                f"{num_killed} killed   {best[0].autoscaler:14s} {mean_late(best):7.0f} late "
                f"{mean_hours(best):6.1f} GPU-h {best[0].num_killed:4d} killed   "
                f"{'late ' * is_late}{'dear' * is_dear}",
                flush=True,
            )
    print(
        f"kept: {kept[False][0]} of {kept[False][1]}; held out {kept[True][0]} of {kept[True][1]}"
    )
    print(f"{time.process_time() - began:.0f} s of processor time")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
