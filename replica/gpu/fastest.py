"""Of several ways to the same product, the one measured fastest here for so many rows.

A kernel that loses to torch on some shape is not used for it, whatever it gains elsewhere.
"""

from collections.abc import Callable, Mapping
from functools import partial

import torch

from replica.gpu.linear import Linear

MeasureS = Callable[[Callable[[], object]], float]  # seconds that doing it takes


class FastestLinear:
    """A Linear.  Numbers of rows are measured up to the next power of two, each once."""

    def __init__(self, ways: Mapping[str, Linear], in_features: int, measure_s: MeasureS) -> None:
        """ways: by name; of equals the first."""
        self._ways = ways
        self._in_features = in_features
        self._measure_s = measure_s
        self._chosen: dict[int, str] = {}

    @property
    def size_bytes(self) -> int:
        return sum(way.size_bytes for way in self._ways.values())

    def choose(self, num_rows: int, like: torch.Tensor) -> str:
        """The way's name; measured over random rows, before any graph is captured.

        like: of the dtype and on the device of what will be multiplied
        """
        size = 1 << max(0, num_rows - 1).bit_length()
        if size not in self._chosen:
            x = torch.randn(size, self._in_features, dtype=like.dtype, device=like.device)
            seconds = {name: self._measure_s(partial(way, x)) for name, way in self._ways.items()}
            self._chosen[size] = min(seconds, key=seconds.__getitem__)
        return self._chosen[size]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._ways[self.choose(len(x), x)](x)
