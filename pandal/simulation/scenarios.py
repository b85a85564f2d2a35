"""The shipped scenarios.  Half of them were looked at while figures were chosen, half were not.

Rates are requests a second of a fleet whose replica does about 0.8; each lasts ninety minutes.
"""

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from pandal.simulation.run import NodeFailure

DURATION_S: Final = 5_400.0

Rate = Callable[[float], float]


@dataclass(frozen=True, slots=True)
class Scenario:
    name: str
    says: str
    rate_per_s: Rate
    is_held_out: bool = False
    output_ratio: Rate = lambda _at_s: 1.0  # of the mean answer
    failures: tuple[NodeFailure, ...] = ()
    blind_s: tuple[float, float] | None = None


def _ramp(at_s: float, begin_s: float, length_s: float) -> float:
    return min(1.0, max(0.0, (at_s - begin_s) / length_s))


def _flash(at_s: float) -> float:
    if at_s < 1_200:
        return 3.0
    return 3.0 + 12.0 * _ramp(at_s, 1_200, 60) * math.exp(-max(0.0, at_s - 1_260) / 600)


def _staircase(at_s: float) -> float:
    return (2.0, 4.0, 6.0, 8.0, 5.0, 2.0)[min(5, int(at_s // 900))]


def _restless(at_s: float) -> float:
    """Another rate every two minutes, from two to eight."""
    return random.Random(f"restless {int(at_s // 120)}").uniform(2.0, 8.0)


_ALL: Final = (
    Scenario("step", "2 a second, from minute 10 on 8", lambda t: 2.0 if t < 600 else 8.0),
    Scenario(
        "ramp", "2 to 10 a second in 15 minutes", lambda t: 2.0 + 8.0 * _ramp(t, 600.0, 900.0)
    ),
    Scenario("burst", "3 a second, 12 for one minute", lambda t: 12.0 if 900 <= t < 960 else 3.0),
    Scenario(
        "diurnal", "a day in an hour: 2 to 10", lambda t: 6.0 + 4.0 * math.sin(math.tau * t / 3_600)
    ),
    Scenario("blind", "6 a second, ten minutes without metrics", lambda _t: 6.0,
             blind_s=(1_800.0, 2_400.0)),
    Scenario("drop", "10 a second, from minute 30 on 1", lambda t: 10.0 if t < 1_800 else 1.0),
    Scenario("flash-crowd", "3 a second, fivefold in a minute, fading", _flash, is_held_out=True),
    Scenario("staircase", "2, 4, 6, 8, 5, 2 a second", _staircase, is_held_out=True),
    Scenario(
        "sawtooth", "2 to 9 a second in 20 minutes, again and again",
        lambda t: 2.0 + 7.0 * (t % 1_200) / 1_200, is_held_out=True,
    ),
    Scenario(
        "failing-nodes", "6 a second; a third of the pods die, later a fifth", lambda _t: 6.0,
        is_held_out=True,
        failures=(NodeFailure(1_500.0, 0.33), NodeFailure(3_300.0, 0.20, gpus_lost=4)),
    ),
    Scenario(
        "longer-answers", "4 a second, answers 2.5 times as long from minute 30",
        lambda _t: 4.0, is_held_out=True,
        output_ratio=lambda t: 1.0 if t < 1_800 else 2.5,
    ),
    Scenario("restless", "another rate every two minutes", _restless, is_held_out=True),
)  # fmt: skip

SCENARIOS: Final[Mapping[str, Scenario]] = {scenario.name: scenario for scenario in _ALL}
