"""What tests of the GPU's path share: a model, and runners on a GPU or under the interpreter."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from replica.engine.batch import FlatBatch, SampledRow, Segment
from replica.engine.kv_blocks import KvOptions
from replica.engine.messages import SamplingParams
from replica.engine.scheduler import SchedulerLimits
from replica.model.loader import OpenedModel, open_model
from replica.settings import Settings
from tests.kernels.triton_runs import DEVICE
from tests.replica.engine_harness import EngineHarness

backend = pytest.importorskip("replica.gpu.backend")
device = pytest.importorskip("replica.gpu.device")

BLOCK_SIZE = 16
NUM_BLOCKS = 24
VOCAB_SIZE = 64
SHAPE = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 128,
    "initializer_range": 0.5,
}
GREEDY = SamplingParams(max_tokens=3, temperature=0.0)
CPU = device.CpuDevice(memory_bytes=1 << 30)


class ExactCuda(device.CudaDevice):
    default_dtype = torch.float32  # as is what it is compared with


HERE = CPU if DEVICE == "cpu" else ExactCuda()


def settings(**changes: object) -> Settings:
    sizes = {"block_size": BLOCK_SIZE, "max_num_seqs": 4, "max_num_batched_tokens": 12}
    return Settings(**{"num_threads": 1} | sizes | changes)


def gpu_runner(
    tiny: OpenedModel, place: "device.Device" = HERE, **changes: object
) -> "backend.DeviceRunner":
    chosen = backend.DeviceBackend(tiny, settings(**changes).engine_config(), [], place)
    return chosen.load(NUM_BLOCKS, lambda ratio, detail: None, KvOptions(2, is_poisoned=True))


def decode_of(num_seqs: int, *, token: int = 5) -> FlatBatch:
    """Each sequence at position 3 of its own block, the last there are."""
    blocks = [NUM_BLOCKS - 1 - i for i in range(num_seqs)]
    return FlatBatch(
        token_ids=[token] * num_seqs,
        positions=[3] * num_seqs,
        slots=[block * BLOCK_SIZE + 3 for block in blocks],
        segments=[Segment(i, 1, 3, [block]) for i, block in enumerate(blocks)],
        sampled_rows=[SampledRow(i, GREEDY, 4, is_eos_banned=False) for i in range(num_seqs)],
    )


def greedy_tokens(
    checkpoint: Path, prompts: Sequence[list[int]], num_tokens: int
) -> list[list[int]]:
    """Of a model of ``SHAPE``: its prompts in chunks, its decodes as graphs of padded sizes."""
    runner = gpu_runner(open_model(checkpoint), is_async_scheduling=True)
    engine = EngineHarness(
        runner, [b"%d " % i for i in range(VOCAB_SIZE)], [],
        SchedulerLimits(BLOCK_SIZE, 4, 12), NUM_BLOCKS, new_launcher=lambda runner: runner,
    )  # fmt: skip
    params = SamplingParams(max_tokens=num_tokens, temperature=0.0)
    ids = engine.submit_together(prompts, params)
    engine.run()
    return [[int(token) for token in engine.outcomes[i].text.split()] for i in ids]
