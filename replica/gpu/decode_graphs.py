"""Decode steps captured once for each size of batch: a replay instead of a thousand launches.

A batch runs in the next larger size; what fills it up writes to the null block and is not read.
"""

import bisect
from dataclasses import dataclass, fields
from functools import partial
from typing import Final

import torch

from kernels.paged_attention.rows import AttentionRows
from replica.engine.batch import FlatBatch
from replica.gpu.device import Device, Work
from replica.gpu.inputs import NO_ADAPTER, HostInputs, is_decode_only, padded_decodes
from replica.gpu.kv_cache import DeviceKvCache
from replica.gpu.model import DeviceInputs, DeviceLlama

_SMALL: Final = (1, 2, 4, 8)
_STEP: Final = 16  # padding costs at most so many rows; above, sizes are its multiples


def bucket_sizes(max_num_seqs: int) -> list[int]:
    """Ascending; the last holds every batch."""
    sizes = [*_SMALL, *range(_STEP, max_num_seqs + _STEP, _STEP)]
    return [size for size in sizes if size < max_num_seqs] + [max_num_seqs]


@dataclass(frozen=True, slots=True)
class _Buffers:
    """What graphs read: of the largest batch; a smaller one's graph reads the beginnings."""

    token_ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    adapter_ids: torch.Tensor
    query_starts: torch.Tensor
    context_lengths: torch.Tensor
    block_tables: torch.Tensor

    def fill(self, device: Device, inputs: HostInputs) -> None:
        for field in fields(self):
            values = getattr(inputs, field.name)
            getattr(self, field.name)[: len(values)].copy_(device.upload(values), non_blocking=True)


class DecodeGraphs:
    def __init__(
        self,
        device: Device,
        model: DeviceLlama,
        cache: DeviceKvCache,
        *,
        max_num_seqs: int,
        max_context: int,
        block_size: int,
    ) -> None:
        """Captures nothing yet."""
        self._device = device
        self._model = model
        self._cache = cache
        self._max_context = max_context
        self._table_width = -(-max_context // block_size)
        self._sizes = bucket_sizes(max_num_seqs)
        self._buffers = self._allocate(max_num_seqs)
        self._hidden: dict[int, torch.Tensor] = {}  # what each size's graph computes
        self._replays: dict[int, Work] = {}

    @property
    def sizes(self) -> list[int]:
        return self._sizes

    def capture(self) -> None:
        """The largest first: the smaller ones fit in the memory that it left."""
        for size in reversed(self._sizes):
            self._replays[size] = self._device.capture(partial(self._compute, size))

    def can_run(self, batch: FlatBatch) -> bool:
        return bool(self._replays) and is_decode_only(batch)

    def fill(self, batch: FlatBatch) -> torch.Tensor:
        """Sends a batch's numbers; returns where its token ids lie, for those that are carried."""
        size = self._size(batch)
        self._buffers.fill(self._device, padded_decodes(batch, size, self._table_width))
        return self._buffers.token_ids

    def run(self, batch: FlatBatch) -> torch.Tensor:
        """[num_seqs, hidden], valid until the next run of this size."""
        size = self._size(batch)
        self._replays[size]()
        return self._hidden[size][: len(batch.segments)]

    def _size(self, batch: FlatBatch) -> int:
        return self._sizes[bisect.bisect_left(self._sizes, len(batch.segments))]

    def _compute(self, size: int) -> None:
        buffers = self._buffers
        attention = AttentionRows(
            query_starts=buffers.query_starts[: size + 1],
            context_lengths=buffers.context_lengths[:size],
            block_tables=buffers.block_tables[:size],
            max_query_tokens=1,
            max_context=self._max_context,
        )
        inputs = DeviceInputs(
            buffers.token_ids[:size],
            buffers.positions[:size],
            buffers.slots[:size],
            attention,
            self._model.adapters.rows(buffers.adapter_ids[:size]),
        )
        self._hidden[size] = self._model.hidden_states(inputs, self._cache)

    def _allocate(self, size: int) -> _Buffers:
        """As all padding stands: what is captured computes nothing that matters."""
        place = self._device.torch_device

        def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, device=place)

        return _Buffers(
            token_ids=zeros(size),
            positions=zeros(size),
            slots=zeros(size),
            adapter_ids=torch.full((size,), NO_ADAPTER, dtype=torch.int64, device=place),
            query_starts=torch.arange(size + 1, dtype=torch.int32, device=place),
            context_lengths=torch.ones(size, dtype=torch.int32, device=place),
            block_tables=zeros(size, self._table_width, dtype=torch.int32),
        )
