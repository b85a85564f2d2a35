"""The definitions, in plain PyTorch."""

from dataclasses import dataclass
from typing import Final

import torch

from kernels.float8.reference import LARGEST, e4m3_reference

BLOCK_SIZE: Final = 128  # of both sides of a block of weights, and of a stretch of a row


@dataclass(frozen=True, slots=True)
class Float8Rows:
    """Rows of codes, each a scale's multiple."""

    codes: torch.Tensor  # [num_rows, in] float8_e4m3fn
    scales: torch.Tensor  # float32: [num_rows], or [num_rows, in / 128]


@dataclass(frozen=True, slots=True)
class Float8Weight:
    codes: torch.Tensor  # [out, in] float8_e4m3fn
    scales: torch.Tensor  # float32: [out], or of blocks [out / 128, in / 128], both rounded up

    @property
    def has_blocks(self) -> bool:
        return self.scales.ndim == 2


def quantize_rows_reference(x: torch.Tensor, *, in_blocks: bool) -> Float8Rows:
    """code = round(x / scale), scale = the largest |x| / 448, of a row or of each 128 of it."""
    stretch = BLOCK_SIZE if in_blocks else max(1, x.shape[1])
    parts = torch.split(x.float(), stretch, dim=1)
    scales = torch.stack([part.abs().amax(1).clamp(min=1e-12) / LARGEST for part in parts], 1)
    codes = [e4m3_reference(p / s[:, None]) for p, s in zip(parts, scales.T, strict=True)]
    bits = torch.cat([c.view(torch.uint8) for c in codes], 1)
    return Float8Rows(bits.view(torch.float8_e4m3fn), scales if in_blocks else scales[:, 0])


def gemm_fp8_reference(x: Float8Rows, weight: Float8Weight) -> torch.Tensor:
    """y = x W^T, [num_rows, out] float32, computed in float32.

    Source: Micikevicius et al. 2022, "FP8 Formats for Deep Learning"; blocks: DeepSeek-V3 (2024).
    """
    return _dense_rows(x) @ _dense_weight(weight).T


def _dense_rows(x: Float8Rows) -> torch.Tensor:
    if x.scales.ndim == 1:
        return x.codes.float() * x.scales[:, None]
    return x.codes.float() * x.scales.repeat_interleave(BLOCK_SIZE, 1)[:, : x.codes.shape[1]]


def _dense_weight(weight: Float8Weight) -> torch.Tensor:
    codes, scales = weight.codes.float(), weight.scales
    if not weight.has_blocks:
        return codes * scales[:, None]
    for dim in (0, 1):
        scales = scales.repeat_interleave(BLOCK_SIZE, dim)
    return codes * scales[: codes.shape[0], : codes.shape[1]]
