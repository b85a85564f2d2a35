"""Cases cut to what a test needs of them."""

from dataclasses import replace

from pandal.simulation.comparison import Case


def shortened(case: Case, duration_s: float) -> Case:
    arrivals = [arrival for arrival in case.setting.arrivals if arrival.at_s < duration_s]
    return replace(case, setting=replace(case.setting, arrivals=arrivals, duration_s=duration_s))
