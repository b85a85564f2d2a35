"""What ``pandal simulate`` was asked for, checked."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pandal.errors import BadOption
from pandal.simulation.arrivals import read_csv
from pandal.simulation.comparison import MAX_GPUS, Case, scenario_case, trace_case
from pandal.simulation.scenarios import SCENARIOS

COLD_STARTS_S: Final = (60.0, 180.0, 420.0)


@dataclass(frozen=True, slots=True)
class SimulationRequest:
    scenarios: tuple[str, ...]  # empty: all that are shipped
    trace: Path | None  # instead of scenarios
    cold_starts_s: tuple[float, ...]  # empty: COLD_STARTS_S
    num_begin: int
    seed: int


def cases(request: SimulationRequest) -> Iterator[Case]:
    """Raises BadOption, before anything is simulated."""
    cold_starts = request.cold_starts_s or COLD_STARTS_S
    for cold_start_s in cold_starts:
        if not 1.0 <= cold_start_s <= 86_400.0:
            raise BadOption(f"--cold-start-s: 1 to 86400 expected, got {cold_start_s:g}")
    if not 1 <= request.num_begin <= MAX_GPUS:
        raise BadOption(f"--replicas: 1 to {MAX_GPUS} expected, got {request.num_begin}")
    if request.trace is not None:
        return _trace_cases(request, request.trace, cold_starts)
    return _scenario_cases(request, cold_starts)


def _trace_cases(
    request: SimulationRequest, trace: Path, cold_starts: tuple[float, ...]
) -> Iterator[Case]:
    arrivals = read_csv(trace)
    return (
        trace_case(
            trace.name,
            arrivals,
            cold_start_s=cold_start_s,
            num_begin=request.num_begin,
            seed=request.seed,
        )
        for cold_start_s in cold_starts
    )


def _scenario_cases(request: SimulationRequest, cold_starts: tuple[float, ...]) -> Iterator[Case]:
    unknown = [name for name in request.scenarios if name not in SCENARIOS]
    if unknown:
        raise BadOption(f"--scenario: '{unknown[0]}' is none of {', '.join(SCENARIOS)}")
    names = request.scenarios or tuple(SCENARIOS)
    return (
        scenario_case(SCENARIOS[name], cold_start_s=cold_start_s, seed=request.seed)
        for name in names
        for cold_start_s in cold_starts
    )
