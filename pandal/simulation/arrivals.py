"""Requests as a trace brings them: generated from a rate, or read from a CSV file."""

import csv
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pandal.errors import BadOption


@dataclass(frozen=True, slots=True)
class Arrival:
    at_s: float
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Lengths:
    """Log-normal: most are short, and a few are very long."""

    mean_prompt_tokens: float = 800.0
    mean_output_tokens: float = 400.0
    sigma: float = 0.7  # of the logarithm
    longest_ratio: float = 10.0  # of the mean

    def draw(self, rng: random.Random, growth_ratio: float = 1.0) -> tuple[int, int]:
        prompt = self._draw(rng, self.mean_prompt_tokens)
        return prompt, self._draw(rng, self.mean_output_tokens * growth_ratio)

    def _draw(self, rng: random.Random, mean: float) -> int:
        drawn = rng.lognormvariate(math.log(mean) - self.sigma**2 / 2, self.sigma)
        return max(1, int(min(drawn, self.longest_ratio * mean)))


def generated(
    rate_per_s: Callable[[float], float],
    *,
    duration_s: float,
    seed: int,
    lengths: Lengths,
    length_ratio: Callable[[float], float] = lambda _at_s: 1.0,
) -> list[Arrival]:
    """A Poisson process with that rate, by thinning; the same for the same arguments."""
    rng = random.Random(seed)
    highest = 1.02 * max(rate_per_s(float(second)) for second in range(int(duration_s)))
    found, at_s = [], rng.expovariate(highest)
    while at_s < duration_s:
        if rng.random() * highest < rate_per_s(at_s):
            found.append(Arrival(at_s, *lengths.draw(rng, length_ratio(at_s))))
        at_s += rng.expovariate(highest)
    return found


def read_csv(path: Path) -> list[Arrival]:
    """Columns at_s, prompt_tokens, output_tokens, named in the first line.  Raises BadOption."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = [_parse_row(row) for row in csv.DictReader(file)]
    except OSError as exc:
        raise BadOption(f"--trace: {path}: {exc.strerror}") from exc
    except (KeyError, TypeError, ValueError) as exc:
        raise BadOption(
            f"--trace: {path}: at_s, prompt_tokens and output_tokens expected ({_told(exc)})"
        ) from exc
    if not rows:
        raise BadOption(f"--trace: {path}: no request in it")
    return _from_zero(sorted(rows, key=lambda arrival: arrival.at_s))


def _parse_row(row: dict[str, str]) -> Arrival:
    arrival = Arrival(float(row["at_s"]), int(row["prompt_tokens"]), int(row["output_tokens"]))
    if not math.isfinite(arrival.at_s) or arrival.prompt_tokens < 0 or arrival.output_tokens < 1:
        raise ValueError(f"row {row}")
    return arrival


def _from_zero(rows: Sequence[Arrival]) -> list[Arrival]:
    first = rows[0].at_s
    return [Arrival(r.at_s - first, r.prompt_tokens, r.output_tokens) for r in rows]


def _told(exc: Exception) -> str:
    return f"no column {exc}" if isinstance(exc, KeyError) else str(exc)
