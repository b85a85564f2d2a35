"""Plots as inline SVG: a line or points on linear axes, nothing else."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

Point = tuple[float, float]

_WIDTH: Final = 460
_HEIGHT: Final = 260
_LEFT: Final = 56
_BOTTOM: Final = 40
_TOP: Final = 26
_RIGHT: Final = 12
_NUM_TICKS: Final = 5


@dataclass(frozen=True, slots=True)
class Series:
    label: str
    points: Sequence[Point]
    css_class: str  # its colour is the style sheet's
    is_line: bool = True


@dataclass(frozen=True, slots=True)
class Axes:
    title: str
    x_label: str
    y_label: str


def plot(axes: Axes, series: Sequence[Series]) -> str:
    points = [point for one in series for point in one.points]
    if not points:
        return ""
    scale = _Scale(_upper([x for x, _ in points]), _upper([y for _, y in points]))
    parts = [*_frame(axes, scale), *(_drawn(one, scale) for one in series), *_legend(series)]
    box = f'viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(axes.title)}"'
    return f"<svg {box}>{''.join(parts)}</svg>"


@dataclass(frozen=True, slots=True)
class _Scale:
    """From values, zero to the upper ends, to places in the picture."""

    x_upper: float
    y_upper: float

    def place(self, point: Point) -> str:
        return f"{self.x(point[0]):.1f},{self.y(point[1]):.1f}"

    def x(self, value: float) -> float:
        return _LEFT + value / self.x_upper * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        return _HEIGHT - _BOTTOM - value / self.y_upper * (_HEIGHT - _BOTTOM - _TOP)


def _upper(values: Sequence[float]) -> float:
    """A round number at or above all of them."""
    largest = max(values)
    if largest <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(largest))
    return next(step * power for step in (1, 2, 3, 4, 5, 6, 8, 10) if step * power >= largest)


def _frame(axes: Axes, scale: _Scale) -> Iterator[str]:
    yield _text(_WIDTH / 2, 14, axes.title, "title")
    yield _text(_WIDTH / 2, _HEIGHT - 6, axes.x_label, "label")
    yield f'<g transform="rotate(-90)">{_text(-_HEIGHT / 2, 12, axes.y_label, "label")}</g>'
    for tick in range(_NUM_TICKS + 1):
        ratio = tick / _NUM_TICKS
        y, x = scale.y(scale.y_upper * ratio), scale.x(scale.x_upper * ratio)
        yield f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield _text(_LEFT - 6, y + 3, f"{scale.y_upper * ratio:g}", "tick right")
        yield _text(x, _HEIGHT - _BOTTOM + 14, f"{scale.x_upper * ratio:g}", "tick")


def _drawn(series: Series, scale: _Scale) -> str:
    places = [scale.place(point) for point in series.points]
    if series.is_line:
        return f'<polyline class="line {series.css_class}" points="{" ".join(places)}"/>'
    dots = "".join(
        f'<circle cx="{x}" cy="{y}" r="2"/>' for x, y in (place.split(",") for place in places)
    )
    return f'<g class="dots {series.css_class}">{dots}</g>'


def _legend(series: Sequence[Series]) -> Iterator[str]:
    for index, one in enumerate(series):
        y = _TOP + 12 + 14 * index
        place = f'x="{_WIDTH - 110}" y="{y - 8}" width="9" height="9"'
        yield f'<rect class="mark {one.css_class}" {place}/>'
        yield _text(_WIDTH - 97, y, one.label, "legend")


def _text(x: float, y: float, text: str, css_class: str) -> str:
    return f'<text class="{css_class}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'
