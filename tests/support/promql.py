"""PromQL as far as our alerts go, over samples that a test has scraped.

The parser is Prometheus' grammar in a package; what an expression means is written here, after
https://prometheus.io/docs/prometheus/latest/querying/.  Increases are not extrapolated to the ends
of their windows: a test's samples need not lie there.
"""

import operator
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import promql_parser

from autoscaler.exposition import normal_name, parse

Labels = frozenset[tuple[str, str]]
Vector = Mapping[Labels, float]
Points = Sequence[tuple[float, float]]  # time (s) and value, in order

_LOOKBACK_S: Final = 300.0
_EVERY_S: Final = 60.0  # between two evaluations of a rule
_MINUTE_S: Final = 60.0
_UNITS: Final = {"s": 1.0, "m": _MINUTE_S, "h": 3_600.0}
_COMPARISONS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    ">": operator.gt, "<": operator.lt, "==": operator.eq,
}  # fmt: skip
_ARITHMETIC: Final[Mapping[str, Callable[[float, float], float]]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul,
    "/": lambda a, b: a / b if b else float("nan"),
}  # fmt: skip


class Timeline:
    """Scrapes of real servers, put at times of a test's own."""

    def __init__(self) -> None:
        self.now_s = 1_800_000_000.0
        self._series: dict[str, dict[Labels, list[tuple[float, float]]]] = defaultdict(
            lambda: defaultdict(list)
        )

    def add(self, exposition: str, **target: str) -> None:
        """``target``: the labels that whoever scrapes gives it."""
        for name, samples in parse(exposition).items():
            for sample in samples:
                labels = frozenset({**sample.labels, **target}.items())
                self._series[name][labels].append((self.now_s, sample.value))

    def points(self, selector: Any, from_s: float, to_s: float) -> Mapping[Labels, Points]:
        """Of the series that it selects, after the one time and up to the other."""
        found = {}
        for labels, points in self._series[normal_name(selector.name)].items():
            within = [point for point in points if from_s < point[0] <= to_s]
            if within and all(_is_met(m, dict(labels)) for m in selector.matchers.matchers):
                found[labels] = within
        return found


def fires(rule: Mapping[str, Any], timeline: Timeline) -> bool:
    """Whether an alert has held for as long as it must, at every evaluation."""
    expression = promql_parser.parse(rule["expr"])
    at_s = timeline.now_s
    first_s = at_s - _seconds(rule["for"])
    while at_s >= first_s:
        if not evaluate(expression, timeline, at_s):
            return False
        at_s -= _EVERY_S
    return True


def evaluate(node: Any, timeline: Timeline, at_s: float) -> Any:  # a vector, or a number
    kind = type(node).__name__
    if kind == "NumberLiteral":
        return node.val
    if kind == "ParenExpr":
        return evaluate(node.expr, timeline, at_s)
    if kind == "VectorSelector":
        until_s = at_s - _offset_s(node)
        found = timeline.points(node, until_s - _LOOKBACK_S, until_s)
        return {labels: points[-1][1] for labels, points in found.items()}
    if kind == "Call":
        return _called(node, timeline, at_s)
    if kind == "AggregateExpr":
        return _aggregated(node, evaluate(node.expr, timeline, at_s))
    assert kind == "BinaryExpr", kind
    left, right = (evaluate(side, timeline, at_s) for side in (node.lhs, node.rhs))
    if node.modifier is not None and node.modifier.matching is not None:
        assert (str(node.op), node.modifier.matching.labels) == ("and", []), "no other is in use"
        return left if right else {}
    return _combined(str(node.op), left, right)


def _called(node: Any, timeline: Timeline, at_s: float) -> Any:  # as ``evaluate``
    if node.func.name == "time":
        return at_s
    (argument,) = node.args
    if node.func.name == "absent":
        return {} if evaluate(argument, timeline, at_s) else {frozenset(): 1.0}
    if node.func.name == "scalar":
        values = list(evaluate(argument, timeline, at_s).values())
        return values[0] if len(values) == 1 else float("nan")
    selector, range_s = argument.vector_selector, argument.range.total_seconds()
    until_s = at_s - _offset_s(selector)
    found = timeline.points(selector, until_s - range_s, until_s)
    increases = {labels: _increase(p) for labels, p in found.items() if len(p) > 1}
    per_s = {"rate": range_s, "increase": 1.0}[node.func.name]
    return {labels: increase / per_s for labels, increase in increases.items()}


def _increase(points: Points) -> float:
    """Of a counter, which begins anew with its process."""
    total = 0.0
    for (_, before), (_, after) in pairwise(points):
        total += after - before if after >= before else after
    return total


def _aggregated(node: Any, vector: Vector) -> Vector:
    kept = set() if node.modifier is None else set(node.modifier.labels)
    groups: dict[Labels, list[float]] = defaultdict(list)
    for labels, value in vector.items():
        groups[frozenset(pair for pair in labels if pair[0] in kept)].append(value)
    combine: Callable[[list[float]], float] = {"sum": sum, "max": max}[str(node.op)]
    return {labels: combine(values) for labels, values in groups.items()}


def _combined(sign: str, left: Any, right: Any) -> Any:
    if sign == "and":
        return {labels: value for labels, value in left.items() if labels in right}
    if sign == "unless":
        return {labels: value for labels, value in left.items() if labels not in right}
    if sign == "or":
        return {**right, **left}
    if isinstance(left, float) and isinstance(right, float):
        return _ARITHMETIC[sign](left, right)
    pairs = _paired(left, right)
    if sign in _COMPARISONS:
        return {labels: a for labels, (a, b) in pairs.items() if _COMPARISONS[sign](a, b)}
    return {labels: _ARITHMETIC[sign](a, b) for labels, (a, b) in pairs.items()}


def _paired(left: Any, right: Any) -> Mapping[Labels, tuple[float, float]]:
    """One to one, by all labels; a number goes with each."""
    if isinstance(left, float):
        return {labels: (left, value) for labels, value in right.items()}
    if isinstance(right, float):
        return {labels: (value, right) for labels, value in left.items()}
    return {labels: (left[labels], right[labels]) for labels in left.keys() & right.keys()}


def _is_met(matcher: Any, labels: Mapping[str, str]) -> bool:
    value, wanted = labels.get(matcher.name, ""), matcher.value
    kind = str(matcher.op).rpartition(".")[2]
    if kind in ("Re", "NotRe"):
        return (re.fullmatch(wanted, value) is not None) == (kind == "Re")
    return (value == wanted) == (kind == "Equal")


def _offset_s(selector: Any) -> float:
    return 0.0 if selector.offset is None else selector.offset.total_seconds()


def _seconds(duration: str) -> float:
    return float(duration[:-1]) * _UNITS[duration[-1]]
