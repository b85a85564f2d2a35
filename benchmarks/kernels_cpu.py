"""The compiled step on its own: decode and prefill tokens per second, without a server.

    python benchmarks/kernels_cpu.py MODEL.gguf [--kv bfloat16] [--activations int8] ...

Contexts are filled by a real prefill; every figure is the median of ``--rounds`` steps.  The pure
read speed of the machine stands beside them: a decode of one sequence cannot be faster than the
weights and its keys and values can be read.
"""

import argparse
import statistics
import time
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

from kernels.decoder_step.batch import StepBatch
from kernels.decoder_step.model import DecoderShape, DecoderWeights, KvCache, LayerWeights
from kernels.decoder_step.op import DecoderStep
from kernels.linear.formats import ActivationFormat, WeightFormat
from kernels.linear.packing import PackedWeight, pack_gguf
from kernels.paged_attention.formats import KvFormat
from kernels.paged_attention.plan import Segment
from kernels.threads.team import ThreadTeam
from kernels.vector_ir.levels import FeatureLevel, detect_level

BLOCK_SIZE = 16


class Gguf:
    def __init__(self, path: Path) -> None:
        reader = gguf.GGUFReader(path)
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}
        self._fields = reader.fields

    def number(self, key: str) -> float:
        return float(self._fields["llama." + key].contents())

    def matrix(self, *names: str, num_heads: tuple[int, ...] = ()) -> PackedWeight:
        """Rows of several tensors of one type, one after the other."""
        rows = [self._rows(name) for name in names]
        for index, heads in enumerate(num_heads):
            pairs = rows[index].reshape(heads, -1, 2, rows[index].shape[1])
            rows[index] = np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows[index].shape)
        kind = self._tensors[names[0] + ".weight"].tensor_type.name.lower()
        return pack_gguf(np.concatenate(rows), WeightFormat(kind))

    def vector(self, name: str) -> npt.NDArray[np.float32]:
        return np.array(self._tensors[name + ".weight"].data, np.float32).reshape(-1)

    def _rows(self, name: str) -> npt.NDArray[np.uint8]:
        tensor = self._tensors[name + ".weight"]
        return np.array(tensor.data).view(np.uint8).reshape(int(tensor.shape[1]), -1)


def load(path: Path) -> tuple[DecoderShape, DecoderWeights]:
    file = Gguf(path)
    num_heads = int(file.number("attention.head_count"))
    num_kv_heads = int(file.number("attention.head_count_kv"))
    embedding = file.matrix("token_embd")
    shape = DecoderShape(
        num_layers=int(file.number("block_count")),
        hidden_size=embedding.in_features,
        intermediate_size=int(file.number("feed_forward_length")),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=embedding.in_features // num_heads,
        vocab_size=embedding.out_features,
        rms_norm_eps=file.number("attention.layer_norm_rms_epsilon"),
    )
    exponents = np.arange(0, shape.head_dim, 2) / shape.head_dim
    frequencies = file.number("rope.freq_base") ** -exponents
    angles = np.arange(2048)[:, None] * frequencies
    layers = [
        LayerWeights(
            input_norm=file.vector(f"blk.{i}.attn_norm"),
            qkv=file.matrix(
                *(f"blk.{i}.attn_{part}" for part in "qkv"), num_heads=(num_heads, num_kv_heads)
            ),
            output=file.matrix(f"blk.{i}.attn_output"),
            post_norm=file.vector(f"blk.{i}.ffn_norm"),
            gate_up=file.matrix(f"blk.{i}.ffn_gate", f"blk.{i}.ffn_up"),
            down=file.matrix(f"blk.{i}.ffn_down"),
        )
        for i in range(shape.num_layers)
    ]
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    return shape, DecoderWeights(embedding, layers, file.vector("output_norm"), embedding, cos, sin)


def batch_of(num_seqs: int, start: int, num_tokens: int, vocab_size: int) -> StepBatch:
    """Each sequence owns consecutive blocks; the last row of each is sampled."""
    per_sequence = 2048 // BLOCK_SIZE
    token_ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    segments = []
    for sequence in range(num_seqs):
        first_block = 1 + sequence * per_sequence
        table = range(first_block, first_block + -(-(start + num_tokens) // BLOCK_SIZE))
        segments.append(Segment(len(token_ids), num_tokens, start, table))
        here = range(start, start + num_tokens)
        positions += here
        slots += (first_block * BLOCK_SIZE + position for position in here)
        token_ids += ((sequence * 7919 + position * 104729) % vocab_size for position in here)
    sampled = [segment.first_row + num_tokens - 1 for segment in segments]
    return StepBatch(token_ids, positions, slots, segments, sampled)


def fill(step: DecoderStep, num_seqs: int, context: int, vocab_size: int) -> None:
    """Real keys and values for all sequences, of their own prefills."""
    whole = batch_of(num_seqs, 0, context, vocab_size)
    for segment in whole.segments:
        rows = slice(segment.first_row, segment.first_row + context)
        step.run(
            StepBatch(
                whole.token_ids[rows],
                whole.positions[rows],
                whole.slots[rows],
                [Segment(0, context, 0, segment.block_table)],
                [],
            )
        )


def median_s(step: DecoderStep, batch: StepBatch, rounds: int) -> float:
    step.run(batch)
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        step.run(batch)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def read_gb_per_s() -> float:
    """One thread of numpy; two threads reach up to twice as much."""
    values = np.ones(64 << 20, np.float32)
    times = []
    for _ in range(5):
        start = time.perf_counter()
        values.sum()
        times.append(time.perf_counter() - start)
    return values.nbytes / min(times) / 1e9


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--kv", type=KvFormat, default=KvFormat.FLOAT32)
    parser.add_argument("--activations", type=ActivationFormat, default=ActivationFormat.FLOAT32)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--level", type=FeatureLevel, default=detect_level())
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--context", type=int, default=512)
    arguments = parser.parse_args()
    shape, weights = load(arguments.model)
    cache = KvCache(shape, arguments.kv, 1 + 32 * 2048 // BLOCK_SIZE, BLOCK_SIZE)
    with ThreadTeam(arguments.threads) as team:
        start = time.perf_counter()
        step = DecoderStep(
            shape,
            weights,
            cache,
            team,
            max_rows=512,
            max_sampled_rows=32,
            activation_format=arguments.activations,
            level=arguments.level,
        )
        print(
            f"{step.level}, {arguments.threads} threads, {arguments.activations} activations, "
            f"{arguments.kv} keys and values"
        )
        print(f"compiled or loaded in {time.perf_counter() - start:.1f} s")
        print(f"one thread reads {read_gb_per_s():.1f} GB/s")
        vocab = shape.vocab_size
        fill(step, 32, arguments.context, vocab)
        for num_seqs in (1, 4, 8, 16, 32):
            batch = batch_of(num_seqs, arguments.context, 1, vocab)
            seconds = median_s(step, batch, arguments.rounds)
            print(
                f"decode, {num_seqs:2} sequences at {arguments.context}: "
                f"{seconds * 1e3:6.1f} ms, {num_seqs / seconds:6.1f} tokens/s"
            )
        for num_tokens in (32, 128, 512):
            seconds = median_s(step, batch_of(1, 0, num_tokens, vocab), arguments.rounds)
            print(
                f"prefill, {num_tokens:3} tokens: {seconds * 1e3:6.1f} ms, "
                f"{num_tokens / seconds:6.0f} tokens/s"
            )


if __name__ == "__main__":
    main()
