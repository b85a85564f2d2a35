"""What is asked of attention over the rows of a batch, on any device."""

from dataclasses import dataclass
from typing import Final

import torch

Pair = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True, slots=True)
class AttentionRows:
    """Which rows are whose.  The two numbers are bounds of what the tensors hold."""

    query_starts: torch.Tensor  # [num_seqs + 1] int32: the row where each sequence's begin
    context_lengths: torch.Tensor  # [num_seqs] int32: positions, the last of them its last row's
    block_tables: torch.Tensor  # [num_seqs, width] int32, each padded with any block there is
    max_query_tokens: int
    max_context: int

    @property
    def num_seqs(self) -> int:
        return len(self.context_lengths)


@dataclass(frozen=True, slots=True)
class AttentionOptions:
    """split_keys: a multiple of 32; None: as many splits as fill the device.

    With a fixed split a row has the same bits in any batch and any chunk of a prefill.
    """

    window: int | None = None  # positions a row sees, its own the last
    softcap: float | None = None
    split_keys: int | None = None
    scale: float | None = None  # None: 1 / sqrt(head_dim)


PLAIN: Final = AttentionOptions()
