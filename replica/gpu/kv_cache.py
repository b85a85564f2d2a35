"""Keys and values of all layers, and what happens to their blocks besides computing."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Final

import numpy as np
import torch

from kernels.block_copy.op import block_copy
from replica.engine.block_manager import NULL_BLOCK
from replica.engine.kv_blocks import KvOptions
from replica.engine.kv_operations import CopyIn, CopyOut, KvOperation, Vacate
from replica.gpu.device import Device
from replica.model.config import LlamaConfig

Pair = tuple[torch.Tensor, torch.Tensor]

_NOT_A_NUMBER: Final = 0xFF  # in each byte of a float32, a bfloat16, and a float8_e4m3fn


def block_bytes(config: LlamaConfig, block_size: int, dtype: torch.dtype) -> int:
    """Of all layers' keys and values."""
    per_head = block_size * config.head_dim * dtype.itemsize
    return 2 * config.num_layers * config.num_kv_heads * per_head


class DeviceKvCache:
    """Zeroed at birth: padding reads the null block, and 0 * NaN would be NaN.

    float8 needs a scale per head and layer; 1 fits keys and values of the models we know of, whose
    largest are far below 448.
    """

    def __init__(
        self,
        device: Device,
        config: LlamaConfig,
        *,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        options: KvOptions,
    ) -> None:
        shape = (config.num_layers, 2, num_blocks, block_size, config.num_kv_heads, config.head_dim)
        bits = torch.zeros(
            (*shape[:-1], config.head_dim * dtype.itemsize),
            dtype=torch.uint8,
            device=device.torch_device,
        )
        self._device = device
        self._elements = bits.view(dtype)
        self._parts = bits.view(2 * config.num_layers, num_blocks, -1)
        self._host = device.host_bytes(
            len(self._parts), options.num_host_blocks, self._parts.shape[2]
        )
        ones = torch.ones(config.num_kv_heads, device=device.torch_device)
        self.scales: Pair = (ones, ones)
        self._is_poisoned = options.is_poisoned
        if options.is_poisoned:
            self._parts[:, NULL_BLOCK + 1 :] = _NOT_A_NUMBER

    def of_layer(self, layer: int) -> Pair:
        """Keys and values, each [num_blocks, block_size, kv_heads, head_dim]."""
        return self._elements[layer, 0], self._elements[layer, 1]

    def apply(self, operations: Sequence[KvOperation]) -> None:
        """In their order; among neighbours of one kind the last word on a block counts."""
        for _, group in groupby(operations, type):
            self._apply_alike(list(group))

    def _apply_alike(self, operations: Sequence[KvOperation]) -> None:
        targets: dict[int, int] = {}  # to each block, from which
        for operation in operations:
            match operation:
                case Vacate(block):
                    targets[block] = block
                case CopyOut(block, host_block):
                    targets[host_block] = block
                case CopyIn(host_block, block):
                    targets[block] = host_block
        ends = (self._ids(targets.values()), self._ids(targets))
        match operations[0]:
            case Vacate() if self._is_poisoned:
                self._parts.index_fill_(1, ends[1], _NOT_A_NUMBER)
            case CopyOut():
                block_copy(self._parts, self._host, *ends)
            case CopyIn():
                block_copy(self._host, self._parts, *ends)

    def _ids(self, blocks: Iterable[int]) -> torch.Tensor:
        return self._device.upload(np.fromiter(blocks, np.int64))
