"""The definition, in plain PyTorch."""

import torch


def block_copy_reference(
    source: torch.Tensor,
    target: torch.Tensor,
    source_blocks: torch.Tensor,
    target_blocks: torch.Tensor,
) -> None:
    """target[:, target_blocks[i]] = source[:, source_blocks[i]], of every part.

    source, target: [num_parts, num_blocks, block_bytes] uint8; as many blocks as each has
    source_blocks, target_blocks: [num_copies] int64, no target twice
    """
    target[:, target_blocks] = source[:, source_blocks]
