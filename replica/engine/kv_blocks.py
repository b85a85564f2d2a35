"""The blocks of a KV cache as memory: copied to the host and back, and poisoned when vacated."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final, cast

import numpy as np
import numpy.typing as npt

from replica.engine.block_manager import NULL_BLOCK
from replica.engine.kv_operations import CopyIn, CopyOut, KvOperation, Vacate

Bytes = npt.NDArray[np.uint8]

_NOT_A_NUMBER: Final = 0xFF  # in each byte of a float32, a bfloat16, or the scale of int8 codes


@dataclass(frozen=True, slots=True)
class KvOptions:
    num_host_blocks: int = 0
    is_poisoned: bool = False  # what nobody may read is NaN: whoever reads it fails


PLAIN: Final = KvOptions()


class KvBlocks:
    """Carries out operations on all layers' keys and values at once."""

    def __init__(self, parts: Sequence[Bytes], options: KvOptions) -> None:
        """parts: each [num_blocks, bytes of a block], a view of the cache."""
        self._parts = parts
        # Pages are the operating system's until they are written.
        self._host = [np.zeros((options.num_host_blocks, p.shape[1]), np.uint8) for p in parts]
        self._is_poisoned = options.is_poisoned
        if options.is_poisoned:
            for part in parts:
                part[NULL_BLOCK + 1 :] = _NOT_A_NUMBER

    def apply(self, operations: Sequence[KvOperation]) -> None:
        for kind, group in groupby(operations, type):
            if kind is Vacate and self._is_poisoned:
                self._poison(cast("list[Vacate]", list(group)))  # groupby keeps no type
            elif kind is CopyOut:
                self._copy_out(cast("list[CopyOut]", list(group)))
            elif kind is CopyIn:
                self._copy_in(cast("list[CopyIn]", list(group)))

    def _poison(self, vacated: Sequence[Vacate]) -> None:
        blocks = [operation.block for operation in vacated]
        for part in self._parts:
            part[blocks] = _NOT_A_NUMBER

    def _copy_out(self, copies: Sequence[CopyOut]) -> None:
        last = {copy.host_block: copy.block for copy in copies}  # an index must not repeat
        for part, host in zip(self._parts, self._host, strict=True):
            host[list(last)] = part[list(last.values())]

    def _copy_in(self, copies: Sequence[CopyIn]) -> None:
        last = {copy.block: copy.host_block for copy in copies}
        for part, host in zip(self._parts, self._host, strict=True):
            part[list(last)] = host[list(last.values())]
