"""Of several ways to the same product, the one measured fastest here for so many rows.

A kernel that loses to torch on some shape is not used for it, whatever it gains elsewhere.  All of
it is measured when weights are loaded: a step only looks up, and never waits for the device.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch

from replica.gpu.linear import Linear

MeasureS = Callable[[Callable[[], object]], float]  # seconds that doing it takes


def sizes_through(max_rows: int) -> list[int]:
    """Powers of two, of which the last holds so many rows."""
    return [1 << bits for bits in range(_size_index(max_rows) + 1)]


def fastest_ways(
    ways: Mapping[str, Linear], batches: Sequence[torch.Tensor], measure_s: MeasureS
) -> list[str]:
    """For each batch the name of the way; of equals the first."""
    return [_fastest(ways, x, measure_s) for x in batches]


def _fastest(ways: Mapping[str, Linear], x: torch.Tensor, measure_s: MeasureS) -> str:
    seconds = {name: measure_s(partial(way, x)) for name, way in ways.items()}
    return min(seconds, key=seconds.__getitem__)


def _size_index(num_rows: int) -> int:
    return max(0, num_rows - 1).bit_length()


class FastestLinear:
    """A Linear.  ``chosen``: the name of the way for each of ``sizes_through``; layers share it."""

    def __init__(self, ways: Mapping[str, Linear], chosen: Sequence[str]) -> None:
        self._ways = ways
        self._by_size = [ways[name] for name in chosen]

    @property
    def size_bytes(self) -> int:
        return sum(way.size_bytes for way in self._ways.values())

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Of more rows than were measured, as of the most."""
        return self._by_size[min(_size_index(len(x)), len(self._by_size) - 1)](x)
