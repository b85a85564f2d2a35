"""The step itself: every thread runs it, and takes its share of each stage.

Names of arguments: ``layers`` holds a row of addresses per layer (``LAYER_COLUMNS``), ``tables``
and ``buffers`` hold addresses of what all layers share.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from kernels.argmax.cpu import argmax
from kernels.decoder_step.batch import BatchArrays
from kernels.decoder_step.model import DecoderShape, spread_row
from kernels.linear.cpu import linear, takes_codes
from kernels.linear.formats import GROUP_SIZE, TILE_COLUMNS
from kernels.linear.lookup import lookup
from kernels.paged_attention.cpu import paged_attention
from kernels.quantize.cpu import quantize
from kernels.rms_norm.cpu import add_rms_norm, row_sum
from kernels.rotary.cpu import rotary
from kernels.silu_mul.cpu import silu_mul
from kernels.threads.stage import STAGE_BYTES, finish, take
from kernels.vector_ir.copying import copy_row
from kernels.vector_ir.function import compiled, compiled_entry, inlined
from kernels.vector_ir.rounding import flush_denormals, restore_denormals

LAYER_COLUMNS: Final = (
    "input_norm", "qkv", "output", "post_norm", "gate_up", "down", "keys", "values",
    "window",
)  # fmt: skip
# In the order of their stages.
LAYER_STAGES: Final = (
    "input_norm", "qkv", "rotary", "attention", "attention_joins", "quantize", "output",
    "post_norm", "gate_up", "silu_mul", "down",
)  # fmt: skip
LAST_STAGES: Final = ("final_norm", "gather", "lm_head", "argmax")
STAGES_PER_LAYER: Final = len(LAYER_STAGES)
_INPUT_NORM, _QKV, _OUTPUT, _POST_NORM, _GATE_UP, _DOWN, _KEYS, _VALUES, _WINDOW = range(9)
_spread_row = compiled(spread_row)


class Tables(NamedTuple):
    """Addresses."""

    embedding: int
    final_norm: int
    lm_head: int
    cos: int
    sin: int


class Buffers(NamedTuple):
    """Addresses; rows of float32 where not said otherwise."""

    residual: int  # [max_rows, hidden]
    normed: int  # [max_rows, hidden]
    qkv: int  # [max_rows, (heads + 2 * kv_heads) * head_dim]
    attended: int  # [max_rows, heads * head_dim]
    delta: int  # [max_rows, hidden]
    gate_up: int  # [max_rows, spread_row(2 * intermediate)]
    activated: int  # [max_rows, intermediate]
    codes: int  # bytes: the rows of the next linear of a layer, quantized, if it wants them so
    row_sums: int  # [max_rows] of the final norm: finite if and only if the row is
    logits: int  # [max_sampled_rows, spread_row(vocab, padded to tiles)]
    best: int  # int64 [max_sampled_rows] arg-max of the logits
    stages: int  # [len(stage_names(num_layers)), STAGE_BYTES], zeros before each step
    scratch: int  # bytes [num_threads, scratch_bytes]; the first 64 of each keep its CPU state
    spans: int  # bytes: what threads have seen of the spans of a decode that they share
    scratch_bytes: int  # not an address


class Specializations(NamedTuple):
    layers: Any  # LinearSpecialization of all layers' matrices
    embedding: Any
    lm_head: Any
    attention: Any  # AttentionSpecialization


def stage_names(num_layers: int) -> Sequence[str]:
    return ("embed", *LAYER_STAGES * num_layers, *LAST_STAGES)


@compiled_entry
def decoder_step(
    thread: int,
    num_threads: int,
    specs: Specializations,
    shape: DecoderShape,
    layers: Any,  # int64 [num_layers, len(LAYER_COLUMNS)]
    tables: Tables,
    buffers: Buffers,
    batch: BatchArrays,
) -> None:
    own = buffers.scratch + thread * buffers.scratch_bytes
    scratch = own + 64
    flush_denormals(specs.layers, own)
    num_rows = len(batch.token_ids)
    stage = buffers.stages
    _embed(specs, num_threads, shape, tables, buffers, batch, stage)
    for layer in range(shape.num_layers):
        row = layers[layer]
        stage = buffers.stages + (1 + layer * STAGES_PER_LAYER) * STAGE_BYTES
        delta = buffers.delta if layer > 0 else 0
        _norm(specs, num_threads, shape, buffers, row[_INPUT_NORM], delta, num_rows, stage)
        _attention(
            specs, num_threads, shape, row, tables, buffers, batch, scratch, stage + STAGE_BYTES
        )
        stage += 7 * STAGE_BYTES
        _norm(specs, num_threads, shape, buffers, row[_POST_NORM], buffers.delta, num_rows, stage)
        _feed_forward(
            specs, num_threads, shape, row, buffers, num_rows, scratch, stage + STAGE_BYTES
        )
    stage = buffers.stages + (1 + shape.num_layers * STAGES_PER_LAYER) * STAGE_BYTES
    _norm(specs, num_threads, shape, buffers, tables.final_norm, buffers.delta, num_rows, stage)
    _head(specs, num_threads, shape, tables, buffers, batch, scratch, stage + STAGE_BYTES)
    restore_denormals(specs.layers, own)


@inlined
def _embed(
    specs: Specializations,
    num_threads: int,
    shape: DecoderShape,
    tables: Tables,
    buffers: Buffers,
    batch: BatchArrays,
    stage: int,
) -> None:
    num_rows = len(batch.token_ids)
    num_groups = shape.hidden_size // GROUP_SIZE
    num_done = 0
    row = take(specs.layers, stage, 1)
    while row < num_rows:
        target = buffers.residual + row * shape.hidden_size * 4
        lookup(specs.embedding, tables.embedding, num_groups, batch.token_ids[row], target)
        num_done += 1
        row = take(specs.layers, stage, 1)
    finish(specs.layers, stage, num_done, num_rows)


@inlined
def _norm(
    specs: Specializations,
    num_threads: int,
    shape: DecoderShape,
    buffers: Buffers,
    weight: int,
    delta: int,
    num_rows: int,
    stage: int,
) -> None:
    add_rms_norm(
        specs.layers, num_threads, buffers.residual, delta, weight, buffers.normed,
        _codes(specs, buffers), num_rows, shape.hidden_size, shape.rms_norm_eps, stage,
    )  # fmt: skip


@inlined
def _codes(specs: Specializations, buffers: Buffers) -> int:
    """Where layers' linears want rows quantized; 0: they do not."""
    return buffers.codes if takes_codes(specs.layers) != 0 else 0


@inlined
def _rows_for_linear(specs: Specializations, buffers: Buffers, rows: int) -> int:
    return buffers.codes if takes_codes(specs.layers) != 0 else rows


@inlined
def _attention(
    specs: Specializations,
    num_threads: int,
    shape: DecoderShape,
    row: Any,
    tables: Tables,
    buffers: Buffers,
    batch: BatchArrays,
    scratch: int,
    stage: int,  # the first of those used here
) -> None:
    num_rows = len(batch.token_ids)
    attended_size = shape.num_heads * shape.head_dim
    qkv_size = attended_size + 2 * shape.num_kv_heads * shape.head_dim
    linear(
        specs.layers, num_threads, row[_QKV], qkv_size // TILE_COLUMNS,
        shape.hidden_size // GROUP_SIZE, _rows_for_linear(specs, buffers, buffers.normed),
        num_rows, buffers.qkv, qkv_size * 4, stage, scratch,
    )  # fmt: skip
    rotary(
        specs.attention, num_threads, buffers.qkv, num_rows, shape.num_kv_heads,
        batch.positions, batch.slots, tables.cos, tables.sin, row[_KEYS], row[_VALUES],
        stage + STAGE_BYTES,
    )  # fmt: skip
    paged_attention(
        specs.attention, num_threads, buffers.qkv, qkv_size * 4, buffers.attended, row[_KEYS],
        row[_VALUES], shape.num_kv_heads, row[_WINDOW], batch.pieces, batch.block_tables,
        stage + 2 * STAGE_BYTES, scratch, buffers.spans,
    )  # fmt: skip
    if takes_codes(specs.layers) != 0:
        quantize(
            specs.layers, num_threads, buffers.attended, buffers.codes, num_rows,
            attended_size // GROUP_SIZE, stage + 4 * STAGE_BYTES,
        )  # fmt: skip
    linear(
        specs.layers, num_threads, row[_OUTPUT], shape.hidden_size // TILE_COLUMNS,
        attended_size // GROUP_SIZE, _rows_for_linear(specs, buffers, buffers.attended),
        num_rows, buffers.delta, shape.hidden_size * 4, stage + 5 * STAGE_BYTES, scratch,
    )  # fmt: skip


@inlined
def _feed_forward(
    specs: Specializations,
    num_threads: int,
    shape: DecoderShape,
    row: Any,
    buffers: Buffers,
    num_rows: int,
    scratch: int,
    stage: int,  # the first of those used here
) -> None:
    linear(
        specs.layers, num_threads, row[_GATE_UP],
        2 * shape.intermediate_size // TILE_COLUMNS, shape.hidden_size // GROUP_SIZE,
        _rows_for_linear(specs, buffers, buffers.normed), num_rows, buffers.gate_up,
        _spread_row(2 * shape.intermediate_size) * 4, stage, scratch,
    )  # fmt: skip
    silu_mul(
        specs.layers, num_threads, buffers.gate_up, _spread_row(2 * shape.intermediate_size),
        buffers.activated, _codes(specs, buffers), num_rows, shape.intermediate_size,
        stage + STAGE_BYTES,
    )  # fmt: skip
    linear(
        specs.layers, num_threads, row[_DOWN], shape.hidden_size // TILE_COLUMNS,
        shape.intermediate_size // GROUP_SIZE,
        _rows_for_linear(specs, buffers, buffers.activated), num_rows, buffers.delta,
        shape.hidden_size * 4, stage + 2 * STAGE_BYTES, scratch,
    )  # fmt: skip


@inlined
def _head(
    specs: Specializations,
    num_threads: int,
    shape: DecoderShape,
    tables: Tables,
    buffers: Buffers,
    batch: BatchArrays,
    scratch: int,
    stage: int,  # the first of those used here
) -> None:
    """Checks all rows; sampled rows, gathered where ``delta`` was, become logits."""
    num_rows, num_sampled = len(batch.token_ids), len(batch.sampled_rows)
    _gather(specs, shape, buffers, batch, num_rows, num_sampled, stage)
    num_tiles = (shape.vocab_size + TILE_COLUMNS - 1) // TILE_COLUMNS
    linear(
        specs.lm_head, num_threads, tables.lm_head, num_tiles,
        shape.hidden_size // GROUP_SIZE, buffers.delta, num_sampled, buffers.logits,
        _spread_row(num_tiles * TILE_COLUMNS) * 4, stage + STAGE_BYTES, scratch,
    )  # fmt: skip
    argmax(
        specs.layers, num_threads, buffers.logits, _spread_row(num_tiles * TILE_COLUMNS),
        shape.vocab_size, num_sampled, buffers.best, stage + 2 * STAGE_BYTES,
    )  # fmt: skip


@inlined
def _gather(
    specs: Specializations,
    shape: DecoderShape,
    buffers: Buffers,
    batch: BatchArrays,
    num_rows: int,
    num_sampled: int,
    stage: int,
) -> None:
    row_bytes = shape.hidden_size * 4
    num_done = 0
    unit = take(specs.layers, stage, 1)
    while unit < num_rows + num_sampled:
        if unit < num_rows:
            source = buffers.normed + unit * row_bytes
            row_sum(specs.layers, source, shape.hidden_size, buffers.row_sums + unit * 4)
        else:
            index = unit - num_rows
            source = buffers.normed + batch.sampled_rows[index] * row_bytes
            copy_row(specs.layers, source, buffers.delta + index * row_bytes, shape.hidden_size)
        num_done += 1
        unit = take(specs.layers, stage, 1)
    finish(specs.layers, stage, num_done, num_rows + num_sampled)
