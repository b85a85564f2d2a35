"""What adapters add on a device: for each matrix one stack of all of them, shorter ranks padded."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Final

import numpy as np
import torch

from kernels.grouped_gemm.op import GroupedRows, group_rows
from kernels.lora.op import add_lora_
from kernels.lora.reference import Adapters
from replica.gpu.device import Device
from replica.model.adapter_file import Adapter, LowRank
from replica.model.adapters import MATRICES, layer_changes, rank_of, sizes_of
from replica.model.config import LlamaConfig

_STRENGTH_BYTES: Final = 4
_Changes = Sequence[LowRank | None]  # of one matrix, by adapter


class DeviceAdapters:
    def __init__(
        self, adapters: Sequence[Adapter], model: LlamaConfig, device: Device, dtype: torch.dtype
    ) -> None:
        self._num = len(adapters)
        self._layers = [
            {matrix: _upload(changes, device, dtype) for matrix, changes in layer.items()}
            for layer in _layers(adapters, model)
        ]

    def rows(self, ids: torch.Tensor) -> GroupedRows | None:
        """ids: [num_rows] int64, negative or which one; None: there is nothing to add."""
        return group_rows(ids, self._num) if self._num else None

    def add_(
        self, y: torch.Tensor, x: torch.Tensor, layer: int, matrix: str, rows: GroupedRows | None
    ) -> torch.Tensor:
        """y, with what each row's adapter adds of x; rows without one keep every bit."""
        if rows is not None and matrix in self._layers[layer]:
            add_lora_(y, x, self._layers[layer][matrix], rows)
        return y


def stacked_bytes(adapters: Sequence[Adapter], model: LlamaConfig, dtype: torch.dtype) -> int:
    """On the device, once they are there."""
    total = 0
    for layer, matrix in product(range(model.num_layers), MATRICES):
        rank = max((rank_of(adapter, layer, matrix) for adapter in adapters), default=0)
        if rank:
            numbers = rank * sum(sizes_of(model, matrix))
            total += len(adapters) * (numbers * dtype.itemsize + _STRENGTH_BYTES)
    return total


def _layers(adapters: Sequence[Adapter], model: LlamaConfig) -> Iterator[Mapping[str, _Changes]]:
    """Each layer's matrices that some adapter changes."""
    for index in range(model.num_layers):
        of_adapters = [layer_changes(adapter, model, index) for adapter in adapters]
        yield {
            matrix: [changes.get(matrix) for changes in of_adapters]
            for matrix in MATRICES
            if any(matrix in changes for changes in of_adapters)
        }


def _rank(changes: _Changes) -> int:
    return max(change.rank for change in changes if change is not None)


def _sizes(changes: _Changes) -> tuple[int, int]:
    """(in, out) of the matrix."""
    first = next(change for change in changes if change is not None)
    return first.shrink.shape[1], len(first.expand)


def _upload(changes: _Changes, device: Device, dtype: torch.dtype) -> Adapters:
    """Strengths are in ``expand`` already."""
    in_features, out_features = _sizes(changes)
    shrink = np.zeros((len(changes), _rank(changes), in_features), np.float32)
    expand = np.zeros((len(changes), out_features, _rank(changes)), np.float32)
    for index, change in enumerate(changes):
        if change is not None:
            shrink[index, : change.rank] = change.shrink
            expand[index, :, : change.rank] = change.expand
    scales = device.upload(np.ones(len(changes), np.float32))
    return Adapters(device.upload(shrink).to(dtype), device.upload(expand).to(dtype), scales)
