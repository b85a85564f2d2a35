"""4-bit weights as the kernel reads them, and what AWQ and GPTQ checkpoints hold instead."""

from dataclasses import dataclass
from typing import Final

import torch

CODES_PER_WORD: Final = 8
_AWQ_ORDER: Final = (0, 2, 4, 6, 1, 3, 5, 7)  # nibble i of a word holds this one of 8 columns


@dataclass(frozen=True, slots=True)
class Int4Weight:
    """w[n, k] = scale[k / group_size, n] * (code[k, n] - zero[k / group_size, n])."""

    codes: torch.Tensor  # [in / 8, out] int32: nibble i of word r is input 8 r + i
    zeros: torch.Tensor  # [num_groups, out] int8
    scales: torch.Tensor  # [num_groups, out] of the activations' dtype

    @property
    def in_features(self) -> int:
        return len(self.codes) * CODES_PER_WORD

    @property
    def out_features(self) -> int:
        return self.codes.shape[1]

    @property
    def group_size(self) -> int:
        return self.in_features // len(self.scales)

    @property
    def size_bytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in (self.codes, self.zeros, self.scales))


def from_gptq(
    qweight: torch.Tensor,
    qzeros: torch.Tensor,
    scales: torch.Tensor,
    group_of_input: torch.Tensor | None = None,
) -> Int4Weight:
    """qweight [in / 8, out], qzeros [num_groups, out / 8] less one, scales [num_groups, out].

    Raises ValueError where inputs are not grouped in their order (desc_act).
    Source: AutoGPTQ, ``qlinear_cuda_old.py``, format "gptq".
    """
    num_inputs = len(qweight) * CODES_PER_WORD
    in_order = torch.arange(num_inputs) // (num_inputs // len(scales))
    if group_of_input is not None and not torch.equal(group_of_input.cpu().long(), in_order):
        raise ValueError("GPTQ with inputs out of order (desc_act) is not supported")
    zeros = unpack_columns(qzeros, range(CODES_PER_WORD)) + 1
    return Int4Weight(qweight.contiguous(), zeros.to(torch.int8), scales.contiguous())


def from_awq(qweight: torch.Tensor, qzeros: torch.Tensor, scales: torch.Tensor) -> Int4Weight:
    """qweight [in, out / 8], qzeros [num_groups, out / 8], scales [num_groups, out].

    Source: AutoAWQ, ``awq/modules/linear/gemm.py``.
    """
    codes = unpack_columns(qweight, _AWQ_ORDER)
    zeros = unpack_columns(qzeros, _AWQ_ORDER)
    return Int4Weight(pack_rows(codes), zeros.to(torch.int8), scales.contiguous())


def unpack_columns(words: torch.Tensor, order: range | tuple[int, ...]) -> torch.Tensor:
    """[rows, columns / 8] int32 -> [rows, columns] int32; nibble i is column order[i] of its 8."""
    nibbles = (words[..., None] >> (4 * torch.arange(8, device=words.device))) & 15
    place = torch.empty(8, dtype=torch.int64, device=words.device)
    place[torch.tensor(list(order), device=words.device)] = torch.arange(8, device=words.device)
    return nibbles[..., place].flatten(1).to(torch.int32)


def pack_rows(codes: torch.Tensor) -> torch.Tensor:
    """[rows, columns] of 0 to 15 -> [rows / 8, columns] int32."""
    groups = codes.to(torch.int64).view(-1, CODES_PER_WORD, codes.shape[1])
    words = (groups << (4 * torch.arange(8, device=codes.device))[:, None]).sum(1)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)
