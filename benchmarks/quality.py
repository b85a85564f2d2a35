"""What each precision costs: perplexity and agreement beside float32 on the dequantized weights.

    python -m benchmarks.quality MODEL.gguf [--pairs exact/float32 fast/bfloat16 ...] [--windows N]

The text is ``quality_text.txt``: prose of this project's documents and docstrings, frozen.  It is
read in windows of 512 tokens, each from an empty context.  The reference is ``transformers`` in
float32; every pair of precision and KV dtype runs the compiled step as the engine runs it.  Ratios
within 0.1 % say nothing.  A pair that costs more than 0.5 % must not become a default.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from benchmarks import transformers_peer
from kernels.decoder_step.batch import StepBatch
from kernels.decoder_step.model import DecoderWeights, KvCache
from kernels.decoder_step.op import DecoderStep
from kernels.paged_attention.formats import KvFormat
from kernels.paged_attention.plan import Segment
from kernels.threads.team import ThreadTeam
from kernels.vector_ir.compile_cache import compiling_into
from replica.engine.cores import num_usable_cores
from replica.engine.messages import KvCacheDtype, Precision
from replica.model.loader import OpenedModel, open_model
from replica.model.packed_weights import PackedModel, shape_of
from replica.model.tokenizer_loader import load_tokenizer

WINDOW_TOKENS: Final = 512
BLOCK_SIZE: Final = 16
TEXT: Final = Path(__file__).with_name("quality_text.txt")
PAIRS: Final = (
    "exact/float32", "exact/bfloat16", "exact/int8", "fast/float32", "fast/bfloat16", "fast/int8",
    "int8/float32", "int8-per-channel/float32", "bfloat16/float32",
)  # fmt: skip

Logits = npt.NDArray[np.float32]


@dataclass
class Tally:
    """Sums over positions."""

    num_positions: int = 0
    surprise: float = 0.0  # nats
    num_agreeing: int = 0
    divergence: float = 0.0  # Kullback-Leibler, from the reference, nats
    largest_difference: float = 0.0  # of two logits

    def add(self, logits: Logits, reference: Logits, next_tokens: Sequence[int]) -> None:
        """The last position has no next token within the window."""
        ours = torch.log_softmax(torch.from_numpy(logits), -1)
        theirs = torch.log_softmax(torch.from_numpy(reference), -1)
        targets = torch.tensor(next_tokens)[:, None]
        self.num_positions += len(next_tokens)
        self.surprise -= float(ours[: len(next_tokens)].gather(1, targets).double().sum())
        agreeing = logits.argmax(-1) == reference.argmax(-1)
        self.num_agreeing += int(agreeing[: len(next_tokens)].sum())
        divergence = torch.nn.functional.kl_div(ours, theirs, log_target=True, reduction="none")
        self.divergence += float(divergence[: len(next_tokens)].double().sum())
        difference = float(np.abs(logits - reference).max())
        self.largest_difference = max(self.largest_difference, difference)

    @property
    def perplexity(self) -> float:
        return float(np.exp(self.surprise / self.num_positions))


class Steps:
    """Compiled steps by pair; weights of one precision are packed once."""

    def __init__(self, opened: OpenedModel, cache_dir: Path, team: ThreadTeam) -> None:
        self._opened = opened
        self._cache_dir = cache_dir
        self._team = team
        self._weights: dict[object, DecoderWeights] = {}

    def make(self, pair: str) -> DecoderStep:
        precision, kv_dtype = pair.split("/")
        packed = PackedModel(self._opened.source, self._opened.config, Precision(precision))
        key = packed.layer_format, precision == Precision.INT8_PER_CHANNEL
        weights = self._weights.get(key)
        if weights is None:
            weights = packed.load(lambda ratio: None)
            self._weights[key] = weights
        shape = shape_of(self._opened.config)
        num_blocks = 1 + WINDOW_TOKENS // BLOCK_SIZE
        cache = KvCache(shape, KvFormat(KvCacheDtype(kv_dtype)), num_blocks, BLOCK_SIZE)
        with compiling_into(self._cache_dir):
            return DecoderStep(
                shape,
                weights,
                cache,
                self._team,
                max_rows=WINDOW_TOKENS,
                max_sampled_rows=WINDOW_TOKENS,
                activation_format=packed.activation_format,
            )


def window_batch(token_ids: Sequence[int]) -> StepBatch:
    size = len(token_ids)
    table = range(1, 1 + -(-size // BLOCK_SIZE))
    slots = range(BLOCK_SIZE, BLOCK_SIZE + size)
    return StepBatch(token_ids, range(size), slots, [Segment(0, size, 0, table)], range(size))


def windows(path: Path, count: int | None) -> Iterator[list[int]]:
    """Whole ones."""
    tokenizer = load_tokenizer(path, lambda: datetime.now(UTC))
    token_ids = tokenizer.encode(TEXT.read_text())
    starts = range(0, len(token_ids) - WINDOW_TOKENS + 1, WINDOW_TOKENS)
    for start in starts[:count]:
        yield token_ids[start : start + WINDOW_TOKENS]


def show_progress(what: str) -> None:
    """Apart from the table: many minutes pass before it."""
    print(what, file=sys.stderr, flush=True)


def print_table(tallies: dict[str, Tally]) -> None:
    reference = tallies["transformers"].perplexity
    print("| precision/KV | perplexity | ratio | arg-max agrees | largest difference | mean KL |")
    print("|---|---|---|---|---|---|")
    for name, tally in tallies.items():
        agreement = tally.num_agreeing / tally.num_positions
        print(
            f"| {name} | {tally.perplexity:.4f} | {tally.perplexity / reference:.4f} "
            f"| {100 * agreement:.2f} % | {tally.largest_difference:.2g} "
            f"| {tally.divergence / tally.num_positions:.1e} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--pairs", nargs="+", default=PAIRS)
    parser.add_argument("--windows", type=int, default=None)
    parser.add_argument(
        "--compile-cache-dir", type=Path, default=Path.home() / ".cache/pandal/kernels"
    )
    arguments = parser.parse_args()
    path = arguments.model.resolve()
    show_progress("loading the reference")
    reference_model = transformers_peer.load(path)
    with ThreadTeam(num_usable_cores()) as team, torch.inference_mode():
        steps = Steps(open_model(path), arguments.compile_cache_dir, team)
        by_pair = {}
        for pair in arguments.pairs:
            show_progress(f"packing and compiling {pair}")
            by_pair[pair] = steps.make(pair)
        tallies = {name: Tally() for name in ("transformers", *by_pair)}
        texts = list(windows(path, arguments.windows))
        for number, token_ids in enumerate(texts, 1):
            show_progress(f"window {number} of {len(texts)}")
            reference = reference_model(torch.tensor([token_ids])).logits[0].numpy()
            tallies["transformers"].add(reference, reference, token_ids[1:])
            batch = window_batch(token_ids)
            for pair, step in by_pair.items():
                tallies[pair].add(step.run(batch).logits, reference, token_ids[1:])
    print(f"{tallies['transformers'].num_positions} positions")
    print_table(tallies)


if __name__ == "__main__":
    main()
