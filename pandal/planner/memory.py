"""What fits: weights, and the KV cache beside them; and how long weights take to get there."""

import math

from pandal.planner.accelerator import Accelerator
from pandal.planner.figure import Figure, Unit
from pandal.planner.precision import Precision


def weight_bytes(num_parameters: float, precision: Precision) -> Figure:
    size = precision.bytes_per_value
    return Figure(
        "weight_bytes",
        num_parameters * size,
        Unit.BYTES,
        "parameters x bytes",
        f"{num_parameters:.0f} * {size:g}",
    )


def load_s(weight_bytes: float, load_bytes_per_s: float) -> Figure:
    """The least that a new replica takes."""
    return Figure(
        "weight_load_s",
        weight_bytes / load_bytes_per_s,
        Unit.SECONDS,
        "weights / rate at which disk or network delivers them",
        f"{weight_bytes:.0f} / {load_bytes_per_s:g}",
    )


def kv_copies(num_gpus: int, num_kv_heads: int) -> Figure:
    """A GPU holds whole heads: where there are fewer than GPUs, some hold the same one."""
    return Figure(
        "kv_copies",
        max(1, num_gpus / num_kv_heads),
        Unit.COUNT,
        "GPUs / KV heads, at least 1",
        f"max(1, {num_gpus} / {num_kv_heads})",
    )


def kv_bytes(
    num_tokens: float,
    kv_bytes_per_token: float,
    *,
    copies: float = 1,
    name: str = "kv_bytes_per_request",
) -> Figure:
    return Figure(
        name,
        num_tokens * kv_bytes_per_token * copies,
        Unit.BYTES,
        "tokens x KV bytes per token x copies",
        f"{num_tokens:g} * {kv_bytes_per_token:g} * {copies:g}",
    )


def kv_space_bytes(
    gpu: Accelerator,
    *,
    num_gpus: int,
    usable_ratio: float,
    weight_bytes: float,
    reserve_bytes: float = 0.0,
) -> Figure:
    """``reserve_bytes`` per GPU, besides what ``usable_ratio`` leaves: activations, graphs."""
    value = num_gpus * (gpu.memory_bytes * usable_ratio - reserve_bytes) - weight_bytes
    return Figure(
        "kv_space_bytes",
        value,
        Unit.BYTES,
        "GPUs x (memory x usable share - reserve) - weights",
        f"{num_gpus} * ({gpu.memory_bytes:g} * {usable_ratio:g} - {reserve_bytes:g})"
        f" - {weight_bytes:.0f}",
    )


def max_sequences(kv_space_bytes: float, kv_bytes_per_request: float) -> Figure:
    return Figure(
        "max_sequences",
        max(0, math.floor(kv_space_bytes / kv_bytes_per_request)),
        Unit.COUNT,
        "KV space / KV bytes per request, rounded down",
        f"max(0, floor({kv_space_bytes:.0f} / {kv_bytes_per_request:.0f}))",
    )
