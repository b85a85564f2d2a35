"""Rows of attention between their chunks of keys: how they begin, how spans join, how they end.

The softmax of a row is made in spans of SPAN_KEYS positions, each on its own, then joined in the
order of their positions.  Spans depend on nothing but positions, so a row has the same bits whether
one thread runs through all of its spans or several threads share them.

Source: Dao 2023, "Flash-Decoding"; why fixed spans: docs/decisions/0013.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from kernels.paged_attention.formats import CHUNK_KEYS, AttentionSpecialization
from kernels.vector_ir.emitter import I32, Emitter, Value
from kernels.vector_ir.function import emitted

MASKED = -1e30
_ROWS_AIMED_AT = 12


def rows_of_decode(spec: AttentionSpecialization) -> int:
    return spec.group_size


def tokens_of_tile(spec: AttentionSpecialization) -> int:
    """Positions of one tile of prefill: enough rows to share each load of keys and values."""
    return max(1, _ROWS_AIMED_AT // spec.group_size)


def rows_of_tile(spec: AttentionSpecialization) -> int:
    return tokens_of_tile(spec) * spec.group_size


@dataclass(frozen=True, slots=True)
class Layout:
    """Byte offsets of a tile's state: queries [head_dim][rows], then what rows have seen so far:

    of the current span, and of all spans before it.
    """

    num_rows: int
    head_dim: int

    @property
    def sums(self) -> int:  # [rows][head_dim] weighted values
        return 4 * self.num_rows * self.head_dim

    @property
    def largest(self) -> int:  # [rows] highest score so far
        return 2 * self.sums

    @property
    def totals(self) -> int:  # [rows] sum of weights so far
        return self.largest + 4 * self.num_rows

    @property
    def limits(self) -> int:  # int32 [rows] keys of the current chunk that the row sees
        return self.totals + 4 * self.num_rows

    @property
    def starts(self) -> int:  # int32 [rows] keys of the current chunk that lie before its window
        return self.limits + 4 * self.num_rows

    @property
    def joined(self) -> int:  # sums, largest and totals once more: of the spans before
        return self.starts + 4 * self.num_rows

    @property
    def size_bytes(self) -> int:
        return -(-(self.joined + self.limits - self.sums) // 64) * 64

    @property
    def work_bytes(self) -> int:
        """Scores [rows][CHUNK_KEYS], then [rows] factors; shared by the tiles of a thread.

        Rounded up, so that factors are stored as whole vectors.
        """
        return -(-4 * self.num_rows * (CHUNK_KEYS + 1) // 64) * 64


def layout_of(spec: AttentionSpecialization, *, is_decode: bool) -> Layout:
    """Of one position's rows, or of a tile's."""
    return Layout(rows_of_decode(spec) if is_decode else rows_of_tile(spec), spec.head_dim)


def _emit_start(
    e: Emitter,
    spec: AttentionSpecialization,
    query: Value,  # address of the first head of a group
    state: Value,
    first_row: Value,
    *,
    is_decode: bool,
) -> None:
    """Queries, scaled and transposed, and nothing seen yet, for the heads of one token."""
    at = layout_of(spec, is_decode=is_decode)
    scale = e.constant(spec.head_dim**-0.5)
    row_bytes = 4 * spec.head_dim
    for head in range(spec.group_size):
        row = e.builder.add(first_row, e.i64(head))
        column = e.at(state, e.times(row, 4))
        for v in range(spec.head_dim // e.lanes):
            offset = 4 * e.lanes * v
            scaled = e.mul(e.load_f32(query, head * row_bytes + offset), scale)
            for lane in range(e.lanes):
                dimension = v * e.lanes + lane
                e.store_scalar(e.extract(scaled, lane), column, 4 * at.num_rows * dimension)
        _emit_clear(e, at, state, row)
        _emit_clear(e, at, e.at(state, at.joined - at.sums), row)


def _emit_clear(e: Emitter, at: Layout, state: Value, row: Value) -> None:
    for offset in _offsets(e, at):
        e.store_f32(e.zero, e.at(state, e.times(row, 4 * at.head_dim)), offset)
    scalars = e.at(state, e.times(row, 4))
    e.store_scalar(e.scalar(MASKED), scalars, at.largest)
    e.store_scalar(e.scalar(0.0), scalars, at.totals)


def _emit_join(
    e: Emitter,
    spec: AttentionSpecialization,
    source: Value,  # state whose current span ends; it is empty then
    target: Value,  # state, perhaps the same, whose spans before it joins
    *,
    is_decode: bool,
) -> None:
    """To join with nothing changes no bit, on either side."""
    at = layout_of(spec, is_decode=is_decode)
    joined = e.at(target, at.joined - at.sums)
    with e.loop(e.i64(at.num_rows)) as row:
        of_span, of_all = e.at(source, e.times(row, 4)), e.at(joined, e.times(row, 4))
        new, old = e.load_scalar(of_span, at.largest), e.load_scalar(of_all, at.largest)
        largest = e.larger(new, old)
        gain = e.exp(e.splat(e.builder.fsub(new, largest)))
        fade = e.exp(e.splat(e.builder.fsub(old, largest)))
        total = e.builder.fmul(e.load_scalar(of_span, at.totals), e.extract(gain, 0))
        before = e.builder.fmul(e.load_scalar(of_all, at.totals), e.extract(fade, 0))
        e.store_scalar(largest, of_all, at.largest)
        e.store_scalar(e.builder.fadd(before, total), of_all, at.totals)
        place = e.times(row, 4 * at.head_dim)
        for offset in _offsets(e, at):
            weighted = e.mul(e.load_f32(e.at(joined, place), offset), fade)
            value = e.fma(e.load_f32(e.at(source, place), offset), gain, weighted)
            e.store_f32(value, e.at(joined, place), offset)
        _emit_clear(e, at, source, row)


def _offsets(e: Emitter, at: Layout) -> Iterator[int]:
    """Of a row's vectors of sums, for row 0."""
    yield from range(at.sums, at.sums + 4 * at.head_dim, 4 * e.lanes)


def _emit_finish(
    e: Emitter,
    spec: AttentionSpecialization,
    state: Value,
    first_row: Value,
    output: Value,  # address of the first head of a group
    *,
    is_decode: bool,
) -> None:
    at = layout_of(spec, is_decode=is_decode)
    row_bytes = 4 * spec.head_dim
    joined = e.at(state, at.joined - at.sums)
    for head in range(spec.group_size):
        row = e.builder.add(first_row, e.i64(head))
        total = e.load_scalar(e.at(joined, e.times(row, 4)), at.totals)
        inverse = e.splat(e.builder.fdiv(e.scalar(1.0), total))
        source = e.at(joined, e.times(row, row_bytes))
        for offset in _offsets(e, at):
            target = head * row_bytes + offset - at.sums
            e.store_f32(e.mul(e.load_f32(source, offset), inverse), output, target)


def _emit_limits(e: Emitter, spec: AttentionSpecialization, limits: Value, limit: Value) -> None:
    """The same for each head of a token."""
    for head in range(spec.group_size):
        e.store_scalar(e.builder.trunc(limit, I32), limits, 4 * head)


set_limits = emitted("set_limits", _emit_limits)
start_decode = emitted("start_decode", partial(_emit_start, is_decode=True))
start_tile_token = emitted("start_tile_token", partial(_emit_start, is_decode=False))
join_decode_span = emitted("join_decode_span", partial(_emit_join, is_decode=True))
join_tile_span = emitted("join_tile_span", partial(_emit_join, is_decode=False))
finish_decode = emitted("finish_decode", partial(_emit_finish, is_decode=True))
finish_tile_token = emitted("finish_tile_token", partial(_emit_finish, is_decode=False))
