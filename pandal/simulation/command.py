"""``pandal simulate``: options in, a comparison for people or programs out."""

from pathlib import Path
from typing import Annotated

import typer

from pandal.options import JsonOption
from pandal.screen import SteadyConsole, say


def simulate(
    scenario: Annotated[
        list[str] | None, typer.Option(help="A shipped one, by name.", show_default="all")
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(help="CSV: at_s,prompt_tokens,output_tokens.")
    ] = None,
    cold_start_s: Annotated[
        list[float] | None, typer.Option(help="Mean, in seconds.", show_default="60, 180, 420")
    ] = None,
    replicas: Annotated[int, typer.Option(help="At the beginning of a trace.")] = 2,
    seed: Annotated[int, typer.Option(help="Same seed, same figures.")] = 1,
    as_json: JsonOption = False,
) -> None:
    """The autoscaler beside public ones, over a trace, on a virtual clock.

    late: requests whose first token came too late; changes: of the count; flips: changes that went
    the other way than the one before; killed: streams cut; most: GPUs at once.
    """
    from pandal.simulation.comparison import compared
    from pandal.simulation.report import show, to_json
    from pandal.simulation.request import SimulationRequest, cases

    request = SimulationRequest(
        scenarios=tuple(scenario or ()),
        trace=trace,
        cold_starts_s=tuple(cold_start_s or ()),
        num_begin=replicas,
        seed=seed,
    )
    comparisons = []
    for case in cases(request):
        comparisons.append(compared(case))
        if not as_json:
            show(SteadyConsole(), comparisons[-1])
            say("")
    if as_json:
        say(to_json(comparisons))
