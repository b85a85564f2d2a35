"""The blocks of a KV cache as memory: copied to the host and back, and poisoned when vacated."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final, cast

import numpy as np
import torch

from replica.engine.block_manager import NULL_BLOCK
from replica.engine.kv_operations import CopyIn, CopyOut, KvOperation, Vacate


@dataclass(frozen=True, slots=True)
class KvOptions:
    num_host_blocks: int = 0
    is_poisoned: bool = False  # what nobody may read is NaN: whoever reads it fails


PLAIN: Final = KvOptions()


class KvBlocks:
    """Carries out operations on all layers' keys and values at once."""

    def __init__(self, tensors: Sequence[torch.Tensor], options: KvOptions) -> None:
        """tensors: each [num_blocks, ...], of any floating dtype."""
        self._tensors = tensors
        self._host = [_host_like(tensor, options.num_host_blocks) for tensor in tensors]
        self._is_poisoned = options.is_poisoned
        if options.is_poisoned:
            for tensor in tensors:
                tensor[NULL_BLOCK + 1 :] = torch.nan

    @torch.inference_mode()
    def apply(self, operations: Sequence[KvOperation]) -> None:
        for kind, group in groupby(operations, type):
            if kind is Vacate and self._is_poisoned:
                self._poison(cast("list[Vacate]", list(group)))  # groupby keeps no type
            elif kind is CopyOut:
                self._copy_out(cast("list[CopyOut]", list(group)))
            elif kind is CopyIn:
                self._copy_in(cast("list[CopyIn]", list(group)))

    def _poison(self, vacated: Sequence[Vacate]) -> None:
        blocks = torch.tensor([operation.block for operation in vacated])
        for tensor in self._tensors:
            tensor[blocks] = torch.nan

    def _copy_out(self, copies: Sequence[CopyOut]) -> None:
        last = {copy.host_block: copy.block for copy in copies}  # an index must not repeat
        host_blocks, blocks = torch.tensor(list(last)), torch.tensor(list(last.values()))
        for tensor, host in zip(self._tensors, self._host, strict=True):
            host[host_blocks] = tensor[blocks].to(host.device)

    def _copy_in(self, copies: Sequence[CopyIn]) -> None:
        last = {copy.block: copy.host_block for copy in copies}
        blocks, host_blocks = torch.tensor(list(last)), torch.tensor(list(last.values()))
        for tensor, host in zip(self._tensors, self._host, strict=True):
            tensor[blocks] = host[host_blocks].to(tensor.device)


def _host_like(tensor: torch.Tensor, num_blocks: int) -> torch.Tensor:
    """Of the same bits.  Pages are the operating system's until they are written."""
    size = (num_blocks, *tensor.shape[1:])
    return torch.from_numpy(np.zeros(size, f"i{tensor.element_size()}")).view(tensor.dtype)
