"""What adapters add to rows on a CPU: for each adapter its rows are gathered, multiplied, added."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from replica.model.adapter_file import Adapter
from replica.model.adapters import layer_changes
from replica.model.config import LlamaConfig


@dataclass(frozen=True, slots=True)
class _Change:
    shrink: torch.Tensor  # [rank, in]
    expand: torch.Tensor  # [out, rank]


class TorchAdapters:
    def __init__(self, adapters: Sequence[Adapter], model: LlamaConfig) -> None:
        self._layers = [
            [_layer(adapter, model, index) for index in range(model.num_layers)]
            for adapter in adapters
        ]

    def of(self, ids: Sequence[int | None]) -> "AdaptedRows":
        """ids: each row's; None: no adapter."""
        rows: dict[int, list[int]] = {}
        for row, adapter in enumerate(ids):
            if adapter is not None:
                rows.setdefault(adapter, []).append(row)
        return AdaptedRows([(self._layers[a], torch.tensor(r)) for a, r in rows.items()])


class AdaptedRows:
    """A step's."""

    def __init__(
        self, groups: Sequence[tuple[Sequence[Mapping[str, _Change]], torch.Tensor]] = ()
    ) -> None:
        self._groups = groups

    def add_(self, y: torch.Tensor, x: torch.Tensor, layer: int, matrix: str) -> torch.Tensor:
        """y, with what each row's adapter adds of x; rows without one keep every bit."""
        for layers, rows in self._groups:
            change = layers[layer].get(matrix)
            if change is not None:
                y.index_add_(0, rows, x[rows] @ change.shrink.T @ change.expand.T)
        return y


def _layer(adapter: Adapter, model: LlamaConfig, index: int) -> Mapping[str, _Change]:
    return {
        matrix: _Change(torch.from_numpy(change.shrink), torch.from_numpy(change.expand))
        for matrix, change in layer_changes(adapter, model, index).items()
    }
