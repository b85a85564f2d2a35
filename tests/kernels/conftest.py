"""Levels this machine can run, a team of threads, and the published model fetched if need be.

``EMULATED_LEVEL`` names a level that the machine need not have: then all compiled code runs on an
emulated processor instead, see ``benchmarks.emulated_levels``.
"""

import os
from collections.abc import Callable, Iterator
from typing import Any, Final

import gguf
import numpy as np
import numpy.typing as npt
import pytest

from kernels.decoder_step.model import DecoderShape, DecoderWeights, LayerWeights
from kernels.linear.formats import WeightFormat
from kernels.linear.packing import pack_gguf
from kernels.threads.team import ThreadTeam
from kernels.vector_ir.compile_cache import compiling_into
from kernels.vector_ir.levels import FeatureLevel, host_features, runnable_levels
from replica.model.store import resolve
from replica.settings import default_cache_dir

RUNNABLE = runnable_levels(host_features())
EMULATED_LEVEL: Final = os.environ.get("EMULATED_LEVEL")


@pytest.fixture(scope="session", autouse=True)
def _nothing_kept() -> Iterator[None]:
    """Left alone, Numba keeps code beside the sources and reads it after they have changed."""
    with compiling_into(None):
        yield


@pytest.fixture(params=list(FeatureLevel), ids=str)
def level(request: pytest.FixtureRequest) -> FeatureLevel:
    """Each level the machine has the instructions for; the others are skipped and say so."""
    if EMULATED_LEVEL is not None:
        if request.param != EMULATED_LEVEL:
            pytest.skip(f"only {EMULATED_LEVEL} is emulated")
    elif request.param not in RUNNABLE:
        pytest.skip(f"this CPU cannot run {request.param}")
    return FeatureLevel(request.param)


@pytest.fixture(scope="session")
def new_team() -> Callable[[int], ThreadTeam]:
    """By its number of threads; to be closed."""
    if EMULATED_LEVEL is None:
        return ThreadTeam
    from tests.kernels.emulated_team import EmulatedTeam

    return EmulatedTeam


@pytest.fixture(scope="session")
def run_alone() -> Callable[..., None]:
    """Calls a compiled function of one thread: the function, then its arguments."""
    if EMULATED_LEVEL is None:
        return lambda function, *arguments: function(*arguments)
    from tests.kernels.emulated_team import call

    return call


@pytest.fixture(scope="session")
def team(new_team: Callable[[int], ThreadTeam]) -> Iterator[ThreadTeam]:
    with new_team(2) as threads:
        yield threads


@pytest.fixture(scope="session")
def smollm2() -> tuple[DecoderShape, DecoderWeights]:
    """SmolLM2-135M-Instruct as shipped: Q4_1 layers, a tied embedding in Q8_0."""
    path = resolve("SmolLM2-135M-Instruct", default_cache_dir(), lambda ratio: None)
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    shape = DecoderShape(30, 576, 1536, 9, 3, 64, 49152, 1e-5)
    embedding = pack_gguf(raw(tensors, "token_embd"), WeightFormat.Q8_0)
    cos, sin = rotary_tables(shape.head_dim, 2048, 100_000.0)
    layers = [smollm2_layer(tensors, f"blk.{index}.") for index in range(shape.num_layers)]
    norm = floats(tensors, "output_norm")
    return shape, DecoderWeights(embedding, layers, norm, embedding, cos, sin)


def smollm2_layer(tensors: dict[str, Any], prefix: str) -> LayerWeights:
    q = in_halves(raw(tensors, prefix + "attn_q"), num_heads=9)
    k = in_halves(raw(tensors, prefix + "attn_k"), num_heads=3)
    v = raw(tensors, prefix + "attn_v")
    gate, up = raw(tensors, prefix + "ffn_gate"), raw(tensors, prefix + "ffn_up")
    return LayerWeights(
        input_norm=floats(tensors, prefix + "attn_norm"),
        qkv=pack_gguf(np.concatenate([q, k, v]), WeightFormat.Q4_1),
        output=pack_gguf(raw(tensors, prefix + "attn_output"), WeightFormat.Q4_1),
        post_norm=floats(tensors, prefix + "ffn_norm"),
        gate_up=pack_gguf(np.concatenate([gate, up]), WeightFormat.Q4_1),
        down=pack_gguf(raw(tensors, prefix + "ffn_down"), WeightFormat.Q4_1),
    )


def raw(tensors: dict[str, Any], name: str) -> npt.NDArray[np.uint8]:
    """[out_features, bytes of a row]."""
    tensor = tensors[name + ".weight"]
    return np.array(tensor.data).view(np.uint8).reshape(int(tensor.shape[1]), -1)


def floats(tensors: dict[str, Any], name: str) -> npt.NDArray[np.float32]:
    return np.array(tensors[name + ".weight"].data, np.float32).reshape(-1)


def in_halves(rows: npt.NDArray[np.uint8], num_heads: int) -> npt.NDArray[np.uint8]:
    """GGUF keeps a head's rotary pairs side by side; the kernels turn halves."""
    pairs = rows.reshape(num_heads, -1, 2, rows.shape[1])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)


def rotary_tables(
    head_dim: int, num_positions: int, theta: float
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    frequencies = theta ** -(np.arange(0, head_dim, 2) / head_dim)
    angles = np.arange(num_positions)[:, None] * frequencies[None, :]
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
