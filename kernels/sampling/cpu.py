"""Drawing without a sort: what is kept is found by a search for the last rank's logit.

A float32, its bits put in order, is a number of 32 bits.  Three passes over the vocabulary find the
last one kept: each sums, by the next bits of those not decided yet, how many or how heavy they are.
Plain compiled loops: nothing here is worth vectors of its own.
"""

import math
from typing import Any, Final

import numpy as np

from kernels.threads.stage import finish, take
from kernels.vector_ir.function import compiled

NUM_BUCKETS: Final = 2048
_DIGIT_BITS: Final = (11, 11, 10)  # from the highest on
_HALF: Final = 1 << 31
_MAGNITUDE: Final = (1 << 31) - 1

Array = Any  # NumPy arrays, in compiled code


@compiled
def _rank(bits: int) -> int:
    """0 to 2^32 - 1, rising with the float32 whose bits, as int32, these are."""
    return (bits ^ ((bits >> 31) & _MAGNITUDE)) + _HALF


@compiled
def _last_rank(
    bits: Array, masses: Array, is_counted: bool, target: float, buckets: Array
) -> tuple[int, float]:
    """(rank of the last one kept, mass ranked before it), the largest ranks being kept first.

    One is kept while the mass before it is less than ``target``; counted, each weighs 1.
    """
    prefix, before, low_bits = 0, 0.0, 32
    for digit_bits in _DIGIT_BITS:
        low_bits -= digit_bits
        mask = (1 << digit_bits) - 1
        buckets[: mask + 1] = 0.0
        for index in range(len(bits)):
            rank = _rank(bits[index]) >> low_bits
            if rank >> digit_bits == prefix:
                buckets[rank & mask] += 1.0 if is_counted else masses[index]
        last, above = 0, before
        for bucket in range(mask, -1, -1):
            if buckets[bucket] > 0.0:
                last, before = bucket, above
                above += buckets[bucket]
                if above >= target:
                    break
        prefix = (prefix << digit_bits) | last
    return prefix, before


@compiled
def _drop(bits: Array, masses: Array, is_counted: bool, target: float, buckets: Array) -> float:
    """Zeros for what is not kept.  The mass that is left, summed by id."""
    last, before = _last_rank(bits, masses, is_counted, target, buckets)
    total = 0.0
    for index in range(len(bits)):
        rank = _rank(bits[index])
        if rank < last:
            masses[index] = 0.0
        elif rank == last:
            mass = 1.0 if is_counted else masses[index]
            if before >= target:
                masses[index] = 0.0
            before += mass
        total += masses[index]
    return total


@compiled
def _read(logits: Array, start: int, values: Array) -> float:
    """Copies a row.  Its largest."""
    largest: float = logits[start]
    for index in range(len(values)):
        value = logits[start + index] + np.float32(0.0)  # no -0.0: its bits would rank below 0.0
        values[index] = value
        largest = max(largest, value)
    return largest


@compiled
def _weigh(values: Array, masses: Array, largest: float, temperature: float, min_p: float) -> float:
    """Masses of all that are not zero already, the likeliest's being 1.  Their sum, by id."""
    total = 0.0
    for index in range(len(values)):
        if masses[index] > 0.0:
            mass = math.exp((np.float64(values[index]) - largest) / temperature)
            masses[index] = 0.0 if mass < min_p else mass
            total += masses[index]
    return total


@compiled
def _pick(masses: Array, threshold: float) -> int:
    """The first at which the cumulative mass exceeds ``threshold``; else the last of any mass."""
    cumulative, last = 0.0, 0
    for index in range(len(masses)):
        if masses[index] > 0.0:
            cumulative += masses[index]
            last = index
            if cumulative > threshold:
                break
    return last


@compiled
def sample_rows(
    spec: Any,  # a Specialization
    logits: Array,  # float32, flat
    starts: Array,  # int64 [num_rows] where each row begins
    top_ks: Array,  # int64 [num_rows]
    parameters: Array,  # float64 [num_rows, 4] uniform, temperature, top_p, min_p
    values: Array,  # float32 [vocab] of this thread
    masses: Array,  # float64 [vocab] of this thread
    buckets: Array,  # float64 [NUM_BUCKETS] of this thread
    token_ids: Array,  # int64 [num_rows]
    stage: int,  # of this call alone
) -> None:
    """See ``reference.sample_reference`` for the definition."""
    bits = values.view(np.int32)
    num_done = 0
    row = take(spec, stage, 1)
    while row < len(starts):
        uniform, temperature = parameters[row, 0], parameters[row, 1]
        top_p, min_p = parameters[row, 2], parameters[row, 3]
        largest = _read(logits, starts[row], values)
        masses[:] = 1.0
        if 0 < top_ks[row] < len(values):
            _drop(bits, masses, True, float(top_ks[row]), buckets)
        total = _weigh(values, masses, largest, temperature, min_p)
        if top_p < 1.0:
            total = _drop(bits, masses, False, top_p * total, buckets)
        token_ids[row] = _pick(masses, uniform * total)
        num_done += 1
        row = take(spec, stage, 1)
    finish(spec, stage, num_done, len(starts))
