"""What adapters add to a layer's matrices as a step multiplies them: q, k and v are one product."""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from replica.model.adapter_file import Adapter, LowRank, module_sizes
from replica.model.config import LlamaConfig

MATRICES: Final[Mapping[str, Sequence[str]]] = {  # the model's own, of which parts
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "output": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}


def layer_changes(adapter: Adapter, model: LlamaConfig, layer: int) -> Mapping[str, LowRank]:
    """By matrix; one that is not changed is not there."""
    fused = {}
    for matrix, modules in MATRICES.items():
        parts = [adapter.changes.get((layer, module)) for module in modules]
        if any(part is not None for part in parts):
            fused[matrix] = _fused(parts, [module_sizes(model)[module] for module in modules])
    return fused


def _fused(parts: Sequence[LowRank | None], sizes: Sequence[tuple[int, int]]) -> LowRank:
    """One of the sum of ranks: each part reaches its own rows only."""
    shrink = np.concatenate([part.shrink for part in parts if part is not None])
    expand = np.zeros((sum(rows for rows, _ in sizes), len(shrink)), np.float32)
    row = column = 0
    for part, (num_rows, _) in zip(parts, sizes, strict=True):
        if part is not None:
            expand[row : row + num_rows, column : column + part.rank] = part.expand
            column += part.rank
        row += num_rows
    return LowRank(shrink, expand)


def rank_of(adapter: Adapter, layer: int, matrix: str) -> int:
    """Of what it adds to a whole matrix; 0: nothing."""
    parts = (adapter.changes.get((layer, module)) for module in MATRICES[matrix])
    return sum(part.rank for part in parts if part is not None)


def sizes_of(model: LlamaConfig, matrix: str) -> tuple[int, int]:
    """(out, in)"""
    parts = [module_sizes(model)[module] for module in MATRICES[matrix]]
    return sum(out_features for out_features, _ in parts), parts[0][1]


def num_adapter_weights(adapters: Sequence[Adapter], model: LlamaConfig) -> int:
    """Numbers, as a step multiplies them."""
    return sum(
        rank_of(adapter, layer, matrix) * sum(sizes_of(model, matrix))
        for adapter in adapters
        for layer in range(model.num_layers)
        for matrix in MATRICES
        if rank_of(adapter, layer, matrix)
    )
