"""Prometheus' text format 0.0.4, as far as numbers are wanted from it.

Source: https://prometheus.io/docs/instrumenting/exposition_formats/.  A colon in a name is read as
an underscore: some servers escape it so, depending on who asks.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from autoscaler.errors import SourceFailed

_LINE: Final = re.compile(
    r"(?P<name>[A-Za-z_:][\w:]*)\s*(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)(?:\s+-?\d+)?\s*"
)
_LABEL: Final = re.compile(r'([A-Za-z_]\w*)\s*=\s*"((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class Sample:
    labels: Mapping[str, str]
    value: float


Families = Mapping[str, list[Sample]]


def parse(text: str) -> Families:
    """By name.  Raises SourceFailed: a page that is half metrics is not to be trusted."""
    found: dict[str, list[Sample]] = {}
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise SourceFailed("no Prometheus text: a line that is no sample")
        try:
            value = float(match["value"])
        except ValueError as exc:
            raise SourceFailed("no Prometheus text: a value that is no number") from exc
        labels = dict(_LABEL.findall(match["labels"] or ""))
        found.setdefault(normal_name(match["name"]), []).append(Sample(labels, value))
    return found


def finite_count(name: str, value: float) -> float:
    """Raises SourceFailed: what is no number, or below nothing, is unknown and not zero."""
    if not math.isfinite(value) or value < 0:
        raise SourceFailed(f"{name} is no count")
    return value


def normal_name(name: str) -> str:
    return name.replace(":", "_")
