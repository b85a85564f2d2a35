"""Each kernel's share of the ceilings, at the sizes of an 8-billion-parameter Llama."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere

from benchmarks.gpu.measuring import Ceilings, Row, Work, median_s
from kernels.block_copy.op import block_copy
from kernels.gemm_fp8.op import gemm_fp8, quantize_rows
from kernels.gemm_fp8.reference import Float8Weight
from kernels.gemm_w4a16.formats import Int4Weight
from kernels.gemm_w4a16.op import gemm_w4a16
from kernels.grouped_gemm.op import group_rows
from kernels.kv_write.op import kv_write
from kernels.lora.op import add_lora_
from kernels.lora.reference import Adapters
from kernels.moe.op import moe
from kernels.moe.reference import Experts
from kernels.paged_attention.rows import AttentionRows
from kernels.paged_attention.triton_op import paged_attention
from kernels.rms_norm.triton_op import add_rms_norm_
from kernels.rotary.triton_op import rotary_
from kernels.sampling.rows_reference import Draws
from kernels.sampling.triton_op import logprobs, sample
from kernels.silu_mul.triton_op import silu_mul

BLOCK_SIZE = 16
BANDWIDTH, COMPUTE, BESIDE = "of copy", "of bf16", "x torch"


@dataclass(frozen=True)
class Case:
    """``amount``: bytes, or operations; beside torch, what torch does."""

    name: str
    work: Work
    kind: str
    amount: float = 0.0
    beside: Work | None = None
    target: float | None = None


@dataclass(frozen=True)
class Sizes:
    hidden: int = 4096
    intermediate: int = 14336
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    vocab: int = 128256
    tokens: int = 8192
    rounds: int = 20


TINY = Sizes(32, 48, 2, 1, 16, 32, 2, 1)


class KernelSection:
    def __init__(self, device: torch.device, sizes: Sizes) -> None:
        self._device = device
        self._sizes = sizes
        self._dtype = torch.bfloat16 if device.type == "cuda" else torch.float32

    @property
    def _is_tiny(self) -> bool:
        return self._sizes is TINY

    def rows(self, ceilings: Ceilings) -> Iterator[Row]:
        for case in self._cases():
            seconds = median_s(case.work, self._device, self._sizes.rounds)
            if case.kind == BANDWIDTH:
                share = case.amount / seconds / ceilings.bytes_per_s
            elif case.kind == COMPUTE:
                share = case.amount / seconds / ceilings.flop_per_s
            else:
                assert case.beside is not None
                share = median_s(case.beside, self._device, self._sizes.rounds) / seconds
            yield Row("kernels", f"{case.name}, {1e6 * seconds:.1f} us", share, case.kind,
                      case.target)  # fmt: skip

    def _cases(self) -> Iterator[Case]:
        yield from self._elementwise()
        yield from self._kv()
        yield from self._decodes()
        yield from self._prefills()
        yield from self._sampling()
        yield from self._products()
        yield from self._mixtures()

    def _numbers(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        return torch.randn(shape, device=self._device, dtype=dtype or self._dtype)

    def _elementwise(self) -> Iterator[Case]:
        s, width = self._sizes, self._dtype.itemsize
        x, delta, weight = (self._numbers(*n) for n in [(s.tokens, s.hidden)] * 2 + [(s.hidden,)])
        yield Case("rms_norm with residual", lambda: add_rms_norm_(x, delta, weight, 1e-5),
                   BANDWIDTH, 4 * x.numel() * width, target=0.8)  # fmt: skip
        gate_up = self._numbers(s.tokens, 2 * s.intermediate)
        yield Case("silu_mul", lambda: silu_mul(gate_up), BANDWIDTH, 1.5 * gate_up.numel() * width,
                   target=0.8)  # fmt: skip
        q, tables = self._numbers(s.tokens, s.heads, s.head_dim), self._tables()
        positions = torch.arange(s.tokens, device=self._device)
        yield Case("rotary", lambda: rotary_(q, positions, tables), BANDWIDTH,
                   2 * q.numel() * width, target=0.8)  # fmt: skip

    def _tables(self) -> tuple[torch.Tensor, torch.Tensor]:
        angles = self._numbers(self._sizes.tokens, self._sizes.head_dim // 2, dtype=torch.float32)
        return angles.cos(), angles.sin()

    def _cache(self, num_blocks: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        shape = (num_blocks, BLOCK_SIZE, self._sizes.kv_heads, self._sizes.head_dim)
        return self._numbers(*shape).to(dtype), self._numbers(*shape).to(dtype)

    def _scales(self) -> tuple[torch.Tensor, torch.Tensor]:
        one = torch.ones(self._sizes.kv_heads, device=self._device)
        return one, one

    def _kv(self) -> Iterator[Case]:
        s, width = self._sizes, self._dtype.itemsize
        qkv = self._numbers(s.tokens, (s.heads + 2 * s.kv_heads) * s.head_dim)
        places = torch.arange(s.tokens, device=self._device)
        num_blocks = 1 + s.tokens // BLOCK_SIZE
        for stored in (self._dtype, torch.float8_e4m3fn):
            cache, kv_elements = self._cache(num_blocks, stored), 2 * s.tokens * s.kv_heads
            kv_elements *= s.head_dim
            amount = 2 * qkv.numel() * width - kv_elements * (width - stored.itemsize)
            yield Case(
                f"kv_write with rotary, {stored}",
                lambda cache=cache: kv_write(
                    qkv, places, places, self._tables(), cache, self._scales()
                ),
                BANDWIDTH, amount, target=0.7,
            )  # fmt: skip
        parts = self._cache(num_blocks, self._dtype)[0].view(1, num_blocks, -1).view(torch.uint8)
        blocks = torch.arange(num_blocks, device=self._device)
        target = torch.empty_like(parts)
        yield Case("block_copy", lambda: block_copy(parts, target, blocks, blocks.flip(0)),
                   BANDWIDTH, 2 * parts.numel(), target=0.8)  # fmt: skip

    def _attention(
        self, num_seqs: int, context: int, num_tokens: int, dtype: torch.dtype
    ) -> tuple[Work, float]:
        """(work, bytes of the keys and values read); all sequences' last so many tokens."""
        s, per_seq = self._sizes, -(-context // BLOCK_SIZE)
        cache = self._cache(num_seqs * per_seq, dtype)
        tables = torch.randperm(num_seqs * per_seq, device=self._device).view(num_seqs, per_seq)
        rows = AttentionRows(
            query_starts=(torch.arange(num_seqs + 1, device=self._device) * num_tokens).int(),
            context_lengths=torch.full((num_seqs,), context, device=self._device).int(),
            block_tables=tables.int(),
            max_query_tokens=num_tokens,
            max_context=context,
        )
        q, scales = self._numbers(num_seqs * num_tokens, s.heads, s.head_dim), self._scales()
        num_bytes = 2 * num_seqs * context * s.kv_heads * s.head_dim * dtype.itemsize
        return lambda: paged_attention(q, cache, scales, rows), num_bytes

    def _decodes(self) -> Iterator[Case]:
        shapes = [(1, 1 << 18), (8, 1 << 15), (64, 1 << 12), (256, 1 << 11), (64, 128)]
        for num_seqs, context in [(1, 33)] if self._is_tiny else shapes:
            for stored in (self._dtype, torch.float8_e4m3fn):
                work, num_bytes = self._attention(num_seqs, context, 1, stored)
                is_long = num_seqs * context >= 1 << 18 and stored is self._dtype
                yield Case(f"decode attention, {num_seqs} at {context}, {stored}", work, BANDWIDTH,
                           num_bytes, target=0.8 if is_long else None)  # fmt: skip

    def _prefills(self) -> Iterator[Case]:
        s = self._sizes
        for length in [20] if self._is_tiny else [512, 2048, 8192]:
            work, _ = self._attention(1, length, length, self._dtype)
            q = self._numbers(1, s.heads, length, s.head_dim)
            k, v = (self._numbers(1, s.kv_heads, length, s.head_dim) for _ in range(2))
            yield Case(
                f"prefill attention, {length}, beside SDPA", work, BESIDE,
                beside=lambda q=q, k=k, v=v: F.scaled_dot_product_attention(
                    q, k, v, is_causal=True, enable_gqa=True
                ),
                target=0.5 if length >= 8192 else None,
            )  # fmt: skip

    def _sampling(self) -> Iterator[Case]:
        for num_rows in [1] if self._is_tiny else [1, 64, 256]:
            logits = 3 * self._numbers(num_rows, self._sizes.vocab, dtype=torch.float32)
            for name, top_k, top_p, are_greedy in (
                ("greedy", 0, 1.0, True),
                ("temperature", 0, 1.0, False),
                ("top-k 50 and top-p 0.9", 50, 0.9, False),
            ):
                draws = self._draws(num_rows, top_k, top_p, are_greedy=are_greedy)
                yield Case(
                    f"sampling {num_rows}, {name}, beside a sort",
                    lambda logits=logits, draws=draws: sample(logits, draws), BESIDE,
                    beside=lambda logits=logits: logits.sort(-1, descending=True),
                )  # fmt: skip
            ids = torch.zeros(num_rows, 6, dtype=torch.int64, device=self._device)
            yield Case(f"logprobs {num_rows}",
                       lambda logits=logits, ids=ids: logprobs(logits, ids), BANDWIDTH,
                       4 * logits.numel())  # fmt: skip

    def _draws(self, num_rows: int, top_k: int, top_p: float, *, are_greedy: bool) -> Draws:
        def full(value: float) -> torch.Tensor:
            return torch.full((num_rows,), value, dtype=torch.float64, device=self._device)

        top_ks = torch.full((num_rows,), top_k, dtype=torch.int32, device=self._device)
        return Draws(full(1.0), top_ks, full(top_p), full(0.0), full(0.6), are_greedy)

    def _products(self) -> Iterator[Case]:
        s = self._sizes
        for num_rows in [2] if self._is_tiny else [1, 16, 64, 512, 4096]:
            for name, out_features, in_features in (
                ("gate_up", 2 * s.intermediate, s.hidden),
                ("down", s.hidden, s.intermediate),
            ):
                x, dense = self._numbers(num_rows, in_features), self._numbers(
                    out_features, in_features
                )  # fmt: skip
                plain = lambda x=x, dense=dense: F.linear(x, dense)  # noqa: E731 - one of two works
                four_bit = self._int4(in_features, out_features)
                yield Case(f"4-bit {name}, {num_rows} rows, beside bf16",
                           lambda x=x, w=four_bit: gemm_w4a16(x, w), BESIDE, beside=plain,
                           target=2.0 if num_rows <= 16 else None)  # fmt: skip
                scales = torch.rand(out_features, device=self._device)
                codes = dense.clamp(-448, 448).to(torch.float8_e4m3fn)
                float8 = Float8Weight(codes, scales)
                yield Case(f"float8 {name}, {num_rows} rows, beside bf16",
                           lambda x=x, w=float8: gemm_fp8(
                               quantize_rows(x, in_blocks=False), w, x.dtype
                           ), BESIDE, beside=plain)  # fmt: skip

    def _int4(self, in_features: int, out_features: int) -> Int4Weight:
        group = 16 if self._is_tiny else 128

        def integers(low: int, high: int, *shape: int, dtype: torch.dtype) -> torch.Tensor:
            return torch.randint(low, high, shape, device=self._device, dtype=dtype)

        return Int4Weight(
            integers(-(1 << 31), 1 << 31, in_features // 8, out_features, dtype=torch.int32),
            integers(0, 16, in_features // group, out_features, dtype=torch.int8),
            self._numbers(in_features // group, out_features),
        )

    def _mixtures(self) -> Iterator[Case]:
        s, is_tiny = self._sizes, self._is_tiny
        num_experts, num_rows = (2, 2) if is_tiny else (8, 64)
        experts = Experts(self._numbers(num_experts, 2 * s.intermediate, s.hidden),
                          self._numbers(num_experts, s.hidden, s.intermediate), 2)  # fmt: skip
        x, logits = self._numbers(num_rows, s.hidden), self._numbers(num_rows, num_experts)
        num_bytes = (experts.gate_up.numel() + experts.down.numel()) * self._dtype.itemsize
        yield Case(f"moe of {num_experts}, {num_rows} tokens", lambda: moe(x, logits, experts),
                   BANDWIDTH, num_bytes)  # fmt: skip
        num_adapters = 2 if is_tiny else 32
        adapters = Adapters(self._numbers(num_adapters, 16, s.hidden),
                            self._numbers(num_adapters, s.hidden, 16),
                            torch.ones(num_adapters, device=self._device))  # fmt: skip
        rows = group_rows(torch.arange(num_rows, device=self._device) % num_adapters, num_adapters)
        y, dense = self._numbers(num_rows, s.hidden), self._numbers(s.hidden, s.hidden)
        yield Case(f"lora of {num_adapters}, {num_rows} tokens, beside its matrix",
                   lambda: add_lora_(y, x, adapters, rows), BESIDE,
                   beside=lambda: F.linear(x, dense))  # fmt: skip
