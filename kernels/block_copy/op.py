"""Blocks gathered for swapping or to be sent, and scattered back: checks, then launches."""

import torch
import triton

from kernels.block_copy.kernel import block_copy_kernel
from kernels.block_copy.reference import block_copy_reference
from kernels.devices import runs_triton

_BLOCK = 1024  # words per program
_WORDS = (torch.int64, torch.int32, torch.uint8)  # the widest that divides a block


def block_copy(
    source: torch.Tensor,
    target: torch.Tensor,
    source_blocks: torch.Tensor,
    target_blocks: torch.Tensor,
) -> None:
    """See ``reference.block_copy_reference`` for the definition and the shapes.

    Either may be pinned host memory: a GPU reads and writes it over the bus.
    """
    if source.dtype is not torch.uint8 or target.dtype is not torch.uint8:
        raise ValueError(f"expected bytes, got {source.dtype} and {target.dtype}")
    if source.shape[0] != target.shape[0] or source.shape[2] != target.shape[2]:
        raise ValueError(f"parts of {source.shape} and {target.shape} do not match")
    if not (source.is_contiguous() and target.is_contiguous()):
        raise ValueError("expected contiguous parts")
    if not runs_triton(source_blocks):
        block_copy_reference(source, target, source_blocks, target_blocks)
    elif len(source_blocks) and source.shape[2]:
        word = next(w for w in _WORDS if source.shape[2] % w.itemsize == 0)
        words, places = source.view(word), target.view(word)
        grid = (len(source_blocks), len(words), triton.cdiv(words.shape[2], _BLOCK))
        block_copy_kernel[grid](
            words, places, source_blocks, target_blocks, words.stride(0), places.stride(0),
            words.shape[2], BLOCK=_BLOCK,
        )  # fmt: skip
