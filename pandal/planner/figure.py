"""A number that can say how it came about, and how people read it.

``numbers`` is the formula with its values put in, as an arithmetic expression: evaluated, it gives
``value``.  A test holds every figure of a plan to that.
"""

import enum
from collections.abc import Callable
from dataclasses import dataclass, replace

_LABELS = {
    "all_reduces_s": "all-reduces",
    "ridge_flop_per_byte": "operations per byte at the ridge",
}
_WORDS = {
    "answer": "whole answer",
    "api": "API",
    "bf16": "BF16",
    "flop": "work",
    "fp8": "FP8",
    "gpu": "GPU",
    "gpus": "GPUs",
    "int4": "INT4",
    "kv": "KV",
    "littles": "Little's",
    "s": "second",
    "tpot": "TPOT",
    "ttft": "TTFT",
    "usd": "US dollars",
}


class Unit(enum.StrEnum):
    COUNT = "count"
    BYTES = "bytes"
    BYTES_PER_S = "bytes per second"
    SECONDS = "seconds"
    TOKENS = "tokens"
    TOKENS_PER_S = "tokens per second"
    REQUESTS_PER_S = "requests per second"
    FLOP = "floating-point operations"
    FLOP_PER_BYTE = "operations per byte"
    RATIO = "ratio"
    USD = "US dollars"
    GPU_HOURS = "GPU-hours"


@dataclass(frozen=True, slots=True)
class Figure:
    name: str  # with its unit, for programs: kv_bytes_per_token
    value: float
    unit: Unit
    formula: str  # in words
    numbers: str


def renamed(figure: Figure, name: str) -> Figure:
    return replace(figure, name=name)


def label(figure: Figure) -> str:
    """The name in words; the value shown carries the unit."""
    if figure.name in _LABELS:
        return _LABELS[figure.name]
    words = figure.name.removeprefix("num_").split("_")
    parts = [
        "" if word == "s" and before != "per" else _WORDS.get(word, word)
        for before, word in zip(["", *words], words, strict=False)
    ]
    return " ".join(part for part in parts if part)


def shown(figure: Figure) -> str:
    return _SHOW[figure.unit](figure.value)


def _rounded(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _count(value: float) -> str:
    if value >= 1e9:
        return f"{value / 1e9:.2f} billion"
    if value >= 1e6:
        return f"{value / 1e6:.1f} million"
    return f"{value:,.0f}" if value == round(value) else _rounded(value)


def _bytes(value: float) -> str:
    """Large ones in both: data sheets count in GB, memory allocators in GiB."""
    if value >= 1e9:
        return f"{value / 1e9:.4g} GB ({value / 2**30:.4g} GiB)"
    for size, name in ((2**20, "MiB"), (2**10, "KiB")):
        if value >= size:
            return f"{value / size:.4g} {name}"
    return f"{value:.0f} B"


def _bytes_per_s(value: float) -> str:
    return f"{value / 1e9:.3g} GB/s ({value * 8 / 1e9:.3g} Gbit/s)"


def _seconds(value: float) -> str:
    if value >= 120:
        return f"{value / 60:.3g} min"
    return f"{value:.3g} s" if value >= 1 else f"{value * 1000:.3g} ms"


def _flop(value: float) -> str:
    return f"{value / 1e12:.3g} TFLOP" if value >= 1e11 else f"{value / 1e9:.3g} GFLOP"


def _usd(value: float) -> str:
    return f"${value:,.0f}" if value >= 100 else f"${value:,.3g}"


_SHOW: dict[Unit, Callable[[float], str]] = {
    Unit.COUNT: _count,
    Unit.BYTES: _bytes,
    Unit.BYTES_PER_S: _bytes_per_s,
    Unit.SECONDS: _seconds,
    Unit.TOKENS: lambda value: f"{_count(value)} tokens",
    Unit.TOKENS_PER_S: lambda value: f"{_rounded(value)} tokens/s",
    Unit.REQUESTS_PER_S: lambda value: f"{_rounded(value)} requests/s",
    Unit.FLOP: _flop,
    Unit.FLOP_PER_BYTE: lambda value: f"{value:.0f} FLOP/byte",
    Unit.RATIO: lambda value: f"{value:.3g}",
    Unit.USD: _usd,
    Unit.GPU_HOURS: lambda value: f"{value:.3g} GPU-hours",
}
