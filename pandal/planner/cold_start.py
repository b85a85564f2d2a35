"""How long a new replica takes to have its weights: the least that scaling out can take."""

from pandal.planner.figure import Figure, Unit


def load_s(weight_bytes: float, load_bytes_per_s: float) -> Figure:
    return Figure(
        "weight_load_s",
        weight_bytes / load_bytes_per_s,
        Unit.SECONDS,
        "weights / rate at which disk or network delivers them",
        f"{weight_bytes:.0f} / {load_bytes_per_s:g}",
    )
