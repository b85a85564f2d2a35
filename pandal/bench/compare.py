"""Two runs beside each other, with intervals: is B different from A, or is that noise?

Bootstrap over blocks of neighbouring requests: those met the same queue, so they are no independent
samples, and resampling them one by one would promise more than was measured.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from pandal.bench.answer import Outcome
from pandal.bench.report import BenchReport, RequestColumns

NUM_RESAMPLES: Final = 1_000
CONFIDENCE_RATIO: Final = 0.95

Sample = NDArray[np.float64]
Statistic = Callable[[Sample], Any]  # along the last axis; Any: numpy's scalar of one sample

_MOST_VALUES: Final = 2_000_000  # resampled at once: 16 MB


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """``low`` to ``high`` holds the difference B - A with 95 % confidence."""

    metric: str
    unit: str
    is_lower_better: bool
    a: float
    b: float
    difference: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        if self.low <= 0 <= self.high:
            return "no difference shown"
        return "B is better" if (self.difference < 0) == self.is_lower_better else "A is better"


class Comparison(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="bench.comparison.v1"
):
    confidence_ratio: float
    num_resamples: int
    seed: int
    is_same_load: bool  # or the difference may be the load's
    differences: list[Difference]


class _Metric(msgspec.Struct, frozen=True):
    name: str
    unit: str
    is_lower_better: bool
    sample: Callable[[RequestColumns], Sample]
    statistic: Statistic


def compare(a: BenchReport, b: BenchReport, seed: int = 0) -> Comparison:
    """Metrics of which a run has nothing are left out."""
    rng = np.random.default_rng(seed)
    found = [_difference(metric, a.requests, b.requests, rng) for metric in _METRICS]
    return Comparison(
        confidence_ratio=CONFIDENCE_RATIO,
        num_resamples=NUM_RESAMPLES,
        seed=seed,
        is_same_load=a.load == b.load,
        differences=[difference for difference in found if difference is not None],
    )


def resampled(sample: Sample, statistic: Statistic, rng: np.random.Generator) -> Sample:
    """The statistic of ``NUM_RESAMPLES`` circular block resamples."""
    at_once = max(1, min(NUM_RESAMPLES, _MOST_VALUES // len(sample)))
    parts = [
        statistic(sample[_places(len(sample), min(at_once, NUM_RESAMPLES - done), rng)])
        for done in range(0, NUM_RESAMPLES, at_once)
    ]
    return np.concatenate(parts)


def _places(size: int, num_resamples: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """[num_resamples, size]: each row is whole blocks from anywhere, cut to the sample's length."""
    block = max(1, round(size ** (1 / 3)))
    starts = rng.integers(0, size, (num_resamples, -(-size // block), 1))
    places = (starts + np.arange(block)).reshape(num_resamples, -1)
    return places[:, :size] % size


def show_comparison(console: Console, comparison: Comparison) -> None:
    table = Table()
    for name in ("", "A", "B", "B - A", "95 % interval", "change", ""):
        table.add_column(name, justify="right" if name else "left")
    for row in comparison.differences:
        change = "" if row.a == 0 else f"{row.difference / row.a:+.1%}"
        interval = f"{_signed(row.low)} to {_signed(row.high)}"
        name = f"{row.metric}, {row.unit}"
        figures = (_figure(row.a), _figure(row.b), _signed(row.difference), interval, change)
        table.add_row(name, *figures, row.verdict)
    console.print(table)
    if not comparison.is_same_load:
        console.print("The two runs offered different loads: the differences may be theirs.")


def _figure(value: float) -> str:
    """Four digits, and never in scientific notation."""
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}" if abs(value) >= 1e-4 else "0"


def _signed(value: float) -> str:
    text = _figure(value)
    return text if text.startswith("-") or text == "0" else f"+{text}"


def _difference(
    metric: _Metric, a: RequestColumns, b: RequestColumns, rng: np.random.Generator
) -> Difference | None:
    samples = metric.sample(a), metric.sample(b)
    if not all(map(len, samples)):
        return None
    value_a, value_b = (float(metric.statistic(sample)) for sample in samples)
    spread_a, spread_b = (resampled(sample, metric.statistic, rng) for sample in samples)
    tail = (1 - CONFIDENCE_RATIO) / 2
    low, high = np.quantile(spread_b - spread_a, (tail, 1 - tail))
    return Difference(
        metric=metric.name,
        unit=metric.unit,
        is_lower_better=metric.is_lower_better,
        a=value_a,
        b=value_b,
        difference=value_b - value_a,
        low=float(low),
        high=float(high),
    )


def _milliseconds(column: str) -> Callable[[RequestColumns], Sample]:
    """Of completed requests, as in the report's own figures."""

    def sample(requests: RequestColumns) -> Sample:
        values = zip(getattr(requests, column), requests.outcome, strict=True)
        kept = [v for v, outcome in values if outcome == Outcome.COMPLETED and v is not None]
        return np.asarray(kept, dtype=np.float64) * 1e3

    return sample


def _good(requests: RequestColumns) -> Sample:
    """Turns that a failure kept from being sent stand after it, and are not good."""
    num_dropped = requests.num_dropped_turns or [0] * len(requests.is_good)
    pairs = zip(requests.is_good, num_dropped, strict=True)
    wanted = [good for is_good, num in pairs for good in (is_good, *[False] * num)]
    return np.asarray(wanted, dtype=np.float64)


def _tokens_per_second(requests: RequestColumns) -> Sample:
    """A mean of these is the run's rate: each is an equal part, of about a second, of the run.

    An answer's tokens count where it ended.
    """
    if not requests.intended_s:
        return np.empty(0)
    ends_s = np.asarray(requests.intended_s) + np.asarray(requests.e2e_s)
    zero_s = min(requests.intended_s)
    span_s = float(ends_s.max()) - zero_s
    num_parts = max(1, round(span_s))
    parts = np.minimum((ends_s - zero_s) / span_s * num_parts, num_parts - 1).astype(int)
    is_completed = np.asarray([outcome == Outcome.COMPLETED for outcome in requests.outcome])
    weights = np.asarray(requests.completion_tokens, dtype=np.float64) * is_completed
    sums = np.bincount(parts, weights=weights, minlength=num_parts)
    return sums.astype(np.float64) * (num_parts / span_s)


def _quantile(ratio: float) -> Statistic:
    return lambda sample: np.quantile(sample, ratio, axis=-1)


def _mean(sample: Sample) -> Any:  # Any: as Statistic
    return sample.mean(axis=-1)


def _latencies() -> list[_Metric]:
    columns: Mapping[str, str] = {"TTFT": "ttft_s", "TPOT": "tpot_s", "end to end": "e2e_s"}
    return [
        _Metric(f"{name} p{ratio * 100:g}", "ms", True, _milliseconds(column), _quantile(ratio))
        for name, column in columns.items()
        for ratio in (0.5, 0.95, 0.99)
    ]


_METRICS: Final = (
    *_latencies(),
    _Metric("good requests", "ratio", False, _good, _mean),
    _Metric("output", "tokens/s", False, _tokens_per_second, _mean),
)
