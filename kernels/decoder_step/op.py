"""The step as Python sees it: buffers allocated once, one call per batch."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from kernels.decoder_step.batch import BatchArrays, StepBatch, to_arrays
from kernels.decoder_step.cpu import (
    LAYER_COLUMNS,
    Buffers,
    Specializations,
    Tables,
    decoder_step,
    stage_names,
)
from kernels.decoder_step.model import (
    DecoderShape,
    DecoderWeights,
    KvCache,
    LayerWeights,
    check_sizes,
    spread_row,
)
from kernels.linear.cpu import SCRATCH_BYTES
from kernels.linear.formats import GROUP_SIZE, ActivationFormat, LinearSpecialization
from kernels.paged_attention.cpu import scratch_bytes, spans_bytes
from kernels.paged_attention.formats import ALL_POSITIONS, AttentionSpecialization, KvFormat
from kernels.threads.stage import FINISHED_OFFSET_BYTES, STAGE_BYTES
from kernels.threads.team import ThreadTeam
from kernels.vector_ir.function import compile_for
from kernels.vector_ir.levels import FeatureLevel, host_features, runnable_levels

_CACHE_LINE_BYTES: Final = 64


def fitting_level(shape: DecoderShape, kv_format: KvFormat, block_size: int) -> FeatureLevel:
    """The best this CPU has whose vectors divide the sizes.

    Raises ValueError, about the last level tried, for sizes that none computes.
    """
    check_sizes(shape)
    *better, last = runnable_levels(host_features())
    for level in better:
        with suppress(ValueError):
            return _attention_specialization(level, shape, kv_format, block_size).level
    return _attention_specialization(last, shape, kv_format, block_size).level


@dataclass(frozen=True, slots=True)
class StepResult:
    """Views of the step's buffers: read or copy them before the next step."""

    logits: npt.NDArray[np.float32]  # [num_sampled, vocab], of sampled_rows in their order
    best: npt.NDArray[np.int64]  # [num_sampled] arg-max of each
    is_finite: npt.NDArray[np.bool_]  # [num_rows]


class DecoderStep:
    """Not for two threads at once.  A row's logits have the same bits in any batch."""

    def __init__(
        self,
        shape: DecoderShape,
        weights: DecoderWeights,
        cache: KvCache,
        team: ThreadTeam,
        *,
        max_rows: int,
        max_sampled_rows: int,
        activation_format: ActivationFormat = ActivationFormat.FLOAT32,
        level: FeatureLevel | None = None,
    ) -> None:
        """Compiles, or loads from the cache: seconds, once per machine and weight format.

        activation_format: of the layers' linears; the lm_head's stay float32.
        level: None for ``fitting_level``.  Raises ValueError for weights of other shapes, and for
        int8 activations over weights that are not integers.
        """
        weights.check(shape)
        if level is None:
            level = fitting_level(shape, cache.kv_format, cache.block_size)
        self._shape = shape
        self._weights = weights  # compiled code holds addresses only
        self._cache = cache
        self._team = team
        self._max_rows = max_rows
        self._max_sampled_rows = max_sampled_rows
        self._specs = _specializations(level, shape, weights, cache, activation_format)
        self._layers = _layer_addresses(weights, cache)
        self._tables = Tables(
            embedding=weights.embedding.address,
            final_norm=weights.final_norm.ctypes.data,
            lm_head=weights.lm_head.address,
            cos=weights.cos.ctypes.data,
            sin=weights.sin.ctypes.data,
        )
        own_bytes = _CACHE_LINE_BYTES + max(SCRATCH_BYTES, scratch_bytes(self._specs.attention))
        self._storage = _allocate(
            shape, weights, max_rows, max_sampled_rows, team.num_threads * own_bytes
        )
        spans = spans_bytes(self._specs.attention, team.num_threads, len(weights.cos))
        self._storage["spans"] = np.empty(spans, np.uint8)
        addresses = {name: array.ctypes.data for name, array in self._storage.items()}
        self._buffers = Buffers(**addresses, scratch_bytes=own_bytes)
        empty = to_arrays(StepBatch([], [], [], [], []), self._specs.attention)
        self._run = compile_for(decoder_step, 0, 0, *self._arguments(empty))

    @property
    def level(self) -> FeatureLevel:
        return self._specs.attention.level  # type: ignore[no-any-return]

    def run(self, batch: StepBatch) -> StepResult:
        """Raises ValueError for what does not fit the buffers or the model."""
        self._check(batch)
        arrays = to_arrays(batch, self._specs.attention)
        self._check_blocks(arrays)
        self._storage["stages"][:] = 0
        self._team.run(self._run, *self._arguments(arrays))
        num_sampled = len(batch.sampled_rows)
        return StepResult(
            logits=self._storage["logits"][:num_sampled, : self._shape.vocab_size],
            best=self._storage["best"][:num_sampled],
            is_finite=np.isfinite(self._storage["row_sums"][: len(batch.token_ids)]),
        )

    def stage_ends(self) -> tuple[Sequence[str], npt.NDArray[np.int64]]:
        """Of the last step: the stages' names, and when each was done, in the CPU's time stamps.

        Zero for a stage without work, and for all where the CPU's stamps cannot be read.
        """
        ends = self._storage["stages"].view(np.int64)[:, FINISHED_OFFSET_BYTES // 8]
        return stage_names(self._shape.num_layers), ends

    def _arguments(self, arrays: BatchArrays) -> tuple[Any, ...]:
        return (self._specs, self._shape, self._layers, self._tables, self._buffers, arrays)

    def _check(self, batch: StepBatch) -> None:
        """Compiled code checks nothing: an index out of range would be read all the same."""
        num_rows = len(batch.token_ids)
        if num_rows > self._max_rows or len(batch.sampled_rows) > self._max_sampled_rows:
            raise ValueError(
                f"expected at most {self._max_rows} rows and {self._max_sampled_rows} sampled, "
                f"got {num_rows} and {len(batch.sampled_rows)}"
            )
        if len(batch.positions) != num_rows or len(batch.slots) != num_rows:
            raise ValueError("expected a position and a slot for each token")
        num_slots = self._cache.num_blocks * self._cache.block_size
        _check_range("token", batch.token_ids, self._shape.vocab_size)
        _check_range("position", batch.positions, len(self._weights.cos))
        _check_range("slot", batch.slots, num_slots)
        _check_range("sampled row", batch.sampled_rows, num_rows)
        for segment in batch.segments:
            end = segment.start + segment.num_tokens
            if len(segment.block_table) * self._cache.block_size < end:
                raise ValueError(f"a block table is too short for {end} tokens")
            if segment.num_tokens < 1 or segment.first_row + segment.num_tokens > num_rows:
                raise ValueError("a segment lies outside the rows")

    def _check_blocks(self, arrays: BatchArrays) -> None:
        """All at once: there are as many as contexts are long."""
        tables = arrays.block_tables
        if tables.size:
            extremes = int(tables.min()), int(tables.max())
            _check_range("block", extremes, self._cache.num_blocks)


def _check_range(what: str, values: Any, end: int) -> None:
    if len(values) and not (min(values) >= 0 and max(values) < end):
        raise ValueError(f"{what}: expected 0 to {end - 1}, got {min(values)} to {max(values)}")


def _specializations(
    level: FeatureLevel,
    shape: DecoderShape,
    weights: DecoderWeights,
    cache: KvCache,
    activation_format: ActivationFormat,
) -> Specializations:
    layer_format = weights.layers[0].qkv.weight_format
    attention = _attention_specialization(level, shape, cache.kv_format, cache.block_size)
    has_window = any(layer.window is not None for layer in weights.layers)
    return Specializations(
        layers=LinearSpecialization(level, layer_format, activation_format),
        embedding=LinearSpecialization(level, weights.embedding.weight_format),
        lm_head=LinearSpecialization(level, weights.lm_head.weight_format),
        attention=replace(attention, has_window=has_window),
    )


def _attention_specialization(
    level: FeatureLevel, shape: DecoderShape, kv_format: KvFormat, block_size: int
) -> AttentionSpecialization:
    return AttentionSpecialization(level, kv_format, shape.head_dim, shape.group_size, block_size)


def _layer_addresses(weights: DecoderWeights, cache: KvCache) -> npt.NDArray[np.int64]:
    rows = []
    for index, layer in enumerate(weights.layers):
        keys, values = cache.addresses(index)
        window = ALL_POSITIONS if layer.window is None else layer.window
        numbers = {"keys": keys, "values": values, "window": window} | _weight_addresses(layer)
        rows.append([numbers[column] for column in LAYER_COLUMNS])
    return np.array(rows, np.int64)


def _weight_addresses(layer: LayerWeights) -> dict[str, int]:
    return {
        "input_norm": layer.input_norm.ctypes.data,
        "qkv": layer.qkv.address,
        "output": layer.output.address,
        "post_norm": layer.post_norm.ctypes.data,
        "gate_up": layer.gate_up.address,
        "down": layer.down.address,
    }


def _allocate(
    shape: DecoderShape,
    weights: DecoderWeights,
    max_rows: int,
    max_sampled_rows: int,
    scratch_bytes: int,
) -> dict[str, npt.NDArray[Any]]:
    """``delta`` also takes the sampled rows, of which there may be more than rows of a chunk."""
    attended_size = shape.num_heads * shape.head_dim
    most_rows = max(max_rows, max_sampled_rows)
    widest = max(shape.hidden_size, attended_size, shape.intermediate_size)
    row_size = spread_row(weights.lm_head.padded_out_features)
    codes_bytes = widest // GROUP_SIZE * ActivationFormat.INT8.group_bytes
    return {
        "residual": np.empty((max_rows, shape.hidden_size), np.float32),
        "normed": np.empty((max_rows, shape.hidden_size), np.float32),
        "qkv": np.empty((max_rows, shape.qkv_size), np.float32),
        "attended": np.empty((max_rows, attended_size), np.float32),
        "delta": np.empty((most_rows, shape.hidden_size), np.float32),
        "gate_up": np.empty((max_rows, spread_row(2 * shape.intermediate_size)), np.float32),
        "activated": np.empty((max_rows, shape.intermediate_size), np.float32),
        "codes": np.empty((max_rows, codes_bytes), np.uint8),
        "row_sums": np.empty(max_rows, np.float32),
        "logits": np.empty((max_sampled_rows, row_size), np.float32),
        "best": np.empty(max_sampled_rows, np.int64),
        "stages": np.zeros((len(stage_names(shape.num_layers)), STAGE_BYTES), np.uint8),
        "scratch": np.empty(scratch_bytes, np.uint8),
    }
