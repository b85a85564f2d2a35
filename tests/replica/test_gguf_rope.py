"""A GGUF of Llama 3.1, whose scaling is a tensor of its own: the tokens transformers gives."""

import math
import re
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from replica.engine.messages import CpuBackend
from replica.errors import ModelInvalid
from replica.model.loader import open_model
from tests.replica.test_families import (
    COMPILED_SHAPE,
    LLAMA3_ROPE,
    PROMPTS,
    SHAPE,
    VOCAB_SIZE,
    engine_greedy,
    greedy,
)

HEAD_DIM = COMPILED_SHAPE["head_dim"]
NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}  # fmt: skip


def divisors() -> list[float]:
    """As llama.cpp's converter computes them, frequency by frequency."""
    factor, low, high = (LLAMA3_ROPE[f"{key}factor"] for key in ("", "low_freq_", "high_freq_"))
    original = LLAMA3_ROPE["original_max_position_embeddings"]
    found = []
    for exponent in range(0, HEAD_DIM, 2):
        wavelength = 2 * math.pi * LLAMA3_ROPE["rope_theta"] ** (exponent / HEAD_DIM)
        if wavelength < original / high:
            found.append(1.0)
        elif wavelength > original / low:
            found.append(factor)
        else:
            smooth = (original / wavelength - low) / (high - low)
            found.append(1 / ((1 - smooth) / factor + smooth))
    return found


def gguf_name(name: str) -> str:
    """Of what transformers calls ``name``."""
    found = re.fullmatch(r"model\.layers\.(\d+)\.(.+)\.weight", name)
    if found is None:
        return f"{NAMES[name.removesuffix('.weight')]}.weight"
    return f"blk.{found[1]}.{NAMES[found[2]]}.weight"


def in_pairs(rows: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """llama.cpp turns neighbours, and its converter reorders the rows of q and k to suit."""
    halves = rows.reshape(-1, 2, HEAD_DIM // 2, rows.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows.shape)


def write_gguf(path: Path, model: LlamaForCausalLM, scaling: list[float]) -> None:
    writer, config = gguf.GGUFWriter(path, "llama"), model.config
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(LLAMA3_ROPE["rope_theta"])
    writer.add_token_list([f"t{i}" for i in range(VOCAB_SIZE)])
    writer.add_tensor("rope_freqs.weight", np.array(scaling, np.float32))
    for name, parameter in model.named_parameters():
        weights = parameter.detach().numpy()
        is_turned = "q_proj" in name or "k_proj" in name
        writer.add_tensor(gguf_name(name), in_pairs(weights) if is_turned else weights)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def reference() -> LlamaForCausalLM:
    torch.manual_seed(7)
    changes = COMPILED_SHAPE | {"rope_parameters": LLAMA3_ROPE}
    return LlamaForCausalLM(LlamaConfig(**(SHAPE | changes))).eval()


@pytest.mark.parametrize("cpu_backend", [CpuBackend.TORCH, CpuBackend.COMPILED])
def test_gives_the_tokens_that_transformers_gives(
    reference: LlamaForCausalLM, cpu_backend: CpuBackend, tmp_path: Path
) -> None:
    write_gguf(tmp_path / "scaled.gguf", reference, divisors())
    expected = [greedy(reference, prompt) for prompt in PROMPTS]
    assert engine_greedy(tmp_path / "scaled.gguf", PROMPTS, cpu_backend) == expected


@pytest.mark.parametrize(
    "odd", [[1.0] * 3, [0.0] * (HEAD_DIM // 2), [math.nan] * (HEAD_DIM // 2)], ids=["3", "0", "nan"]
)
def test_odd_divisors_are_refused(
    reference: LlamaForCausalLM, odd: list[float], tmp_path: Path
) -> None:
    write_gguf(tmp_path / "odd.gguf", reference, odd)
    with pytest.raises(ModelInvalid, match=r"rope_freqs.weight: expected 32 numbers above 0"):
        open_model(tmp_path / "odd.gguf")
