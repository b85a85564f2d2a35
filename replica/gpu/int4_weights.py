"""From a checkpoint's 4-bit matrices to what the kernel reads, several of them as one."""

from collections.abc import Sequence
from typing import Final

import torch

from kernels.gemm_w4a16.formats import Int4Weight, from_awq, from_gptq
from replica.errors import ModelInvalid, ModelUnsupported
from replica.gpu.device import Device
from replica.model.int4_tensors import Int4Method, Int4Parts

_LEAST_GROUP: Final = 16  # inputs that share a scale: the kernel takes powers of two from here on


def int4_weight(
    device: Device, parts: Int4Parts, method: Int4Method, dtype: torch.dtype
) -> Int4Weight:
    """Raises ModelUnsupported for groups that the kernel does not take."""
    codes, zeros = device.upload(parts.codes), device.upload(parts.zeros)
    scales = device.upload(parts.scales).to(dtype)
    read = from_awq if method is Int4Method.AWQ else from_gptq
    weight = read(codes, zeros, scales)
    size = weight.group_size
    if size < _LEAST_GROUP or size & (size - 1):
        raise ModelUnsupported(f"groups of {size} inputs are not computed on a GPU")
    return weight


def stacked_int4(parts: Sequence[Int4Weight], rows: Sequence[int], in_features: int) -> Int4Weight:
    """Raises ModelInvalid unless each has so many rows, of so many inputs and equal groups."""
    found = [(part.out_features, part.in_features, part.group_size) for part in parts]
    if found != [(num, in_features, parts[0].group_size) for num in rows]:
        raise ModelInvalid(f"4-bit matrices of (out, in, group) {found} do not fit the model")
    return Int4Weight(
        codes=torch.cat([part.codes for part in parts], dim=1),
        zeros=torch.cat([part.zeros for part in parts], dim=1),
        scales=torch.cat([part.scales for part in parts], dim=1),
    )
