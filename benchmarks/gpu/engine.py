"""Steps of a whole model of random weights against what the memory's bandwidth allows."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from benchmarks.gpu.measuring import Ceilings, Row
from replica.engine.batch import CarriedToken, FlatBatch, SampledRow, Segment
from replica.engine.kv_blocks import PLAIN
from replica.engine.messages import SamplingParams
from replica.engine.sequence import block_table
from replica.gpu.adapters import DeviceAdapters
from replica.gpu.decode_graphs import DecodeGraphs
from replica.gpu.device import Device
from replica.gpu.kv_cache import DeviceKvCache, block_bytes
from replica.gpu.linear import DenseLinear
from replica.gpu.model import DeviceLlama
from replica.gpu.runner import DeviceRunner
from replica.gpu.weights import DeviceFeedForward, DeviceLayer, DeviceWeights
from replica.model.config import LlamaConfig
from replica.model.rotary_tables import rotary_tables

BLOCK_SIZE = 16
GREEDY = SamplingParams(max_tokens=1, temperature=0.0)
LLAMA_3_8B = LlamaConfig(
    vocab_size=128256,
    hidden_size=4096,
    intermediate_size=14336,
    num_layers=32,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    max_positions=8192 + 512,
    rope_theta=500_000.0,
    rms_norm_eps=1e-5,
)
TINY_LLAMA = LlamaConfig(64, 32, 48, 1, 2, 1, 16, 64, 10_000.0, 1e-5)


@dataclass(frozen=True)
class Load:
    decodes: tuple[tuple[int, int], ...]  # (sequences, context)
    prefills: tuple[int, ...]
    mixed: tuple[int, int, int]  # decodes, their context, a prompt beside them
    steps: int


FULL = Load(
    decodes=tuple((b, c) for b in (1, 8, 64, 256) for c in (128, 2048, 8192)),
    prefills=(512, 2048, 8192),
    mixed=(64, 2048, 512),
    steps=20,
)
TINY = Load(decodes=((1, 5),), prefills=(5,), mixed=(1, 4, 3), steps=1)


class EngineSection:
    """One set of weights and one cache for all of it."""

    def __init__(self, device: Device, config: LlamaConfig, load: Load) -> None:
        self._device = device
        self._config = config
        self._load = load
        self._dtype = device.default_dtype
        self._model, self._weights_bytes = random_model(device, config)
        most_tokens = max(b * (c + BLOCK_SIZE) for b, c in self._fitting())
        self._cache = random_cache(
            device, config, 2 + max(most_tokens, *load.prefills) // BLOCK_SIZE
        )

    def _fitting(self) -> list[tuple[int, int]]:
        """Without those whose keys and values would not fit beside the weights."""
        per_token = block_bytes(self._config, BLOCK_SIZE, self._dtype) / BLOCK_SIZE
        left = 0.8 * self._device.free_bytes()
        return [(b, c) for b, c in self._load.decodes if b * c * per_token < left]

    def rows(self, ceilings: Ceilings) -> Iterator[Row]:
        runners = {name: self._runner(name) for name in ("graphs", "launches")}
        for num_seqs, context in self._fitting():
            name = f"decode, {num_seqs} at {context}"
            batch = self._decodes(num_seqs, context)
            seconds = self._step_s(runners["graphs"], batch, is_ahead=True)
            yield Row("engine", name, 1e3 * seconds, "ms/step")
            kv = num_seqs * context * block_bytes(self._config, BLOCK_SIZE, self._dtype)
            least = (self._weights_bytes + kv / BLOCK_SIZE) / ceilings.bytes_per_s
            target = 0.75 if num_seqs >= 64 else None
            yield Row("engine", f"{name}, of the roofline", least / seconds, "", target)
        for length in self._load.prefills:
            seconds = self._step_s(runners["launches"], self._prefill(length), is_ahead=False)
            yield Row("engine", f"prefill of {length}", length / seconds, "tokens/s")
        yield from self._comparisons(runners)

    def _comparisons(self, runners: dict[str, DeviceRunner]) -> Iterator[Row]:
        num_seqs, context, prompt = self._load.mixed
        mixed = self._decodes(num_seqs, context, prompt)
        seconds = self._step_s(runners["launches"], mixed, is_ahead=True)
        name = f"{num_seqs} decodes at {context} beside a prompt of {prompt}"
        yield Row("engine", name, 1e3 * seconds, "ms/step")
        batch = self._decodes(num_seqs, context)
        for name, runner in runners.items():
            for is_ahead in (False, True):
                seconds = self._step_s(runner, batch, is_ahead=is_ahead)
                turn = "launched ahead" if is_ahead else "in turn"
                yield Row("engine", f"decode of {num_seqs} by {name}, {turn}", 1e3 * seconds,
                          "ms/step")  # fmt: skip

    def _runner(self, name: str) -> DeviceRunner:
        most = max(b for b, _ in self._load.decodes)
        return runner_over(
            self._device, self._model, self._cache, max_num_seqs=most,
            max_context=self._config.max_positions, has_graphs=name == "graphs",
        )  # fmt: skip

    def _step_s(self, runner: DeviceRunner, batch: FlatBatch, *, is_ahead: bool) -> float:
        """Mean over the steps; each carries its tokens over from the one before."""
        runner.execute(batch)
        carrying = FlatBatch(
            batch.token_ids, batch.positions, batch.slots, batch.segments, batch.sampled_rows, (),
            [CarriedToken(s.first_row, i) for i, s in enumerate(batch.segments)
             if s.num_tokens == 1],
        )  # fmt: skip
        start = time.perf_counter()
        before = None
        for _ in range(self._load.steps):
            step = runner.launch(carrying)
            if before is not None:
                before.result()
            before = step if is_ahead else None
            if not is_ahead:
                step.result()
        if before is not None:
            before.result()
        return (time.perf_counter() - start) / self._load.steps

    def _decodes(self, num_seqs: int, context: int, prompt: int = 0) -> FlatBatch:
        """Each at its context's last position, and perhaps a chunk of a prompt behind them."""
        per_seq = -(-context // BLOCK_SIZE)
        tables = [range(1 + i * per_seq, 1 + (i + 1) * per_seq) for i in range(num_seqs)]
        segments = [Segment(i, 1, context - 1, block_table(t)) for i, t in enumerate(tables)]
        offset = (context - 1) % BLOCK_SIZE
        positions, slots = [context - 1] * num_seqs, [t[-1] * BLOCK_SIZE + offset for t in tables]
        if prompt:
            segments.append(Segment(num_seqs, prompt, 0, [0] * -(-prompt // BLOCK_SIZE)))
            positions += range(prompt)
            slots += [position % BLOCK_SIZE for position in range(prompt)]
        return self._batch(positions, slots, segments)

    def _prefill(self, length: int) -> FlatBatch:
        table = list(range(1, 1 - (-length // BLOCK_SIZE)))
        slots = [BLOCK_SIZE + position for position in range(length)]
        return self._batch(list(range(length)), slots, [Segment(0, length, 0, table)])

    def _batch(self, positions: list[int], slots: list[int], segments: list[Segment]) -> FlatBatch:
        vocab = self._config.vocab_size
        token_ids = [7919 * row % vocab for row in range(len(positions))]
        sampled = [
            SampledRow(s.first_row + s.num_tokens - 1, GREEDY, 1, is_eos_banned=False)
            for s in segments
        ]
        return FlatBatch(token_ids, positions, slots, segments, sampled)


def random_model(device: Device, config: LlamaConfig) -> tuple[DeviceLlama, int]:
    """(the model, bytes of the matrices that each step reads)."""

    def numbers(*shape: int) -> torch.Tensor:
        """Small enough that nothing overflows through the layers."""
        empty = torch.empty(shape, dtype=device.default_dtype, device=device.torch_device)
        return empty.normal_(std=0.02)

    matrices: list[DenseLinear] = []

    def linear(out_features: int, in_features: int) -> DenseLinear:
        matrices.append(DenseLinear(numbers(out_features, in_features)))
        return matrices[-1]

    hidden, intermediate = config.hidden_size, config.intermediate_size
    attended = config.num_heads * config.head_dim
    layers = [
        DeviceLayer(
            input_norm=numbers(hidden),
            qkv=linear(attended + 2 * config.num_kv_heads * config.head_dim, hidden),
            output=linear(hidden, attended),
            post_norm=numbers(hidden),
            feed_forward=DeviceFeedForward(
                gate_up=linear(2 * intermediate, hidden), down=linear(hidden, intermediate)
            ),
        )
        for _ in range(config.num_layers)
    ]
    cos, sin = (device.upload(table) for table in rotary_tables(config))
    weights = DeviceWeights(
        embedding=numbers(config.vocab_size, hidden),
        layers=layers,
        final_norm=numbers(hidden),
        lm_head=linear(config.vocab_size, hidden),
        tables=(cos, sin),
    )
    adapters = DeviceAdapters((), config, device, device.default_dtype)
    return DeviceLlama(config, weights, adapters), sum(matrix.size_bytes for matrix in matrices)


def random_cache(device: Device, config: LlamaConfig, num_blocks: int) -> DeviceKvCache:
    cache = DeviceKvCache(
        device, config, num_blocks=num_blocks, block_size=BLOCK_SIZE, dtype=device.default_dtype,
        options=PLAIN,
    )  # fmt: skip
    for layer in range(config.num_layers):
        for part in cache.of_layer(layer):
            part.normal_()
    return cache


def runner_over(
    device: Device,
    model: DeviceLlama,
    cache: DeviceKvCache,
    *,
    max_num_seqs: int,
    max_context: int,
    has_graphs: bool = True,
) -> DeviceRunner:
    graphs = DecodeGraphs(
        device, model, cache, max_num_seqs=max_num_seqs, max_context=max_context,
        block_size=BLOCK_SIZE,
    )  # fmt: skip
    if has_graphs:
        graphs.capture()
    return DeviceRunner(device, model, cache, graphs, eos_token_ids=[], num_ahead=1)
