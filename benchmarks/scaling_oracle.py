"""An autoscaler that has read the trace: what a cold start allows to whoever knows all arrivals.

It keeps the replicas that the work of the next cold start needs, each at most as full as asked, and
drains like ours.  Nodes that fail it does not foresee.  Which fullness is best for a case depends
on what lateness is worth, so several are tried.
"""

import math
from collections.abc import Sequence
from itertools import accumulate

from autoscaler.plan import Action, plan
from autoscaler.pool import PoolState
from pandal.simulation.comparison import DRAIN_DEADLINE_S, Case
from pandal.simulation.outcome import Outcome
from pandal.simulation.run import VARIANT, Setting, Simulation

USAGES = (0.8, 0.9, 1.0, 1.1)  # above one: some wait, and less is paid
_SLOWEST_RATIO = 1.3  # of a cold start by the mean: three of its standard deviations


class Oracle:
    name = "oracle"
    period_s = 10.0

    def __init__(self, case: Case, usage: float) -> None:
        running = concurrency(case.setting)
        per_replica = usage * case.setting.model.num_slots
        most = case.setting.num_gpus
        self._needed = [min(most, max(1, math.ceil(count / per_replica))) for count in running]
        self._ahead_s = self.period_s + _SLOWEST_RATIO * case.cold_start_s

    def tick(self, state: PoolState) -> Sequence[Action]:
        first = min(int(state.now_s), len(self._needed) - 1)
        wanted = max(self._needed[first : first + int(self._ahead_s) + 1])
        return plan(
            state.variants,
            {VARIANT: wanted},
            now_s=state.now_s,
            drain_deadline_s=DRAIN_DEADLINE_S,
        )


def concurrency(setting: Setting) -> list[int]:
    """By second: how many would run, had each a slot of a full replica at once."""
    model = setting.model
    changes = [0] * (int(setting.duration_s) + 1)
    for arrival in setting.arrivals:
        prefill_s = model.num_slots * arrival.prompt_tokens / model.prefill_tokens_per_s
        end_s = arrival.at_s + prefill_s + arrival.output_tokens * model.step_s(model.num_slots)
        changes[int(arrival.at_s)] += 1
        changes[min(int(end_s) + 1, len(changes) - 1)] -= 1
    return list(accumulate(changes))


def oracles_outcomes(cases: Sequence[Case]) -> Sequence[Sequence[Outcome]]:
    """By usage, and of each by case."""
    return [
        [Simulation(case.setting, Oracle(case, usage)).run() for case in cases] for usage in USAGES
    ]
