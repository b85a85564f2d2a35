"""Model files: what is read, and what is refused by name."""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig as HfLlamaConfig
from transformers import LlamaForCausalLM
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from replica.engine.batch import FlatBatch, Segment
from replica.engine.paged_attention import KvCache, PagedAttention
from replica.errors import ModelError, ModelInvalid, ModelNotFound, ModelUnsupported
from replica.model.config import config_from_gguf, config_from_hf
from replica.model.gguf_file import GgufFile
from replica.model.llama import LlamaModel
from replica.model.loader import open_model
from replica.model.safetensors_loader import SafetensorsDirectory

GGUF = {
    "general.architecture": "llama",
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.block_count": 2,
    "llama.context_length": 64,
    "llama.embedding_length": 32,
    "llama.feed_forward_length": 48,
    "tokenizer.ggml.tokens": ["a"] * 50,
}
TINY = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rope_theta": 50_000.0,
}

YARN: dict[str, Any] = {"original_max_position_embeddings": 16}
ODD_YARNS = [
    {"rope_type": "yarn", "original_max_position_embeddings": 64} | changes
    for changes in (
        {"factor": 3.7, "truncate": False},
        {"factor": 40.0, "mscale": 0.707, "mscale_all_dim": 1.0},
        {"factor": 2.5, "attention_factor": 1.25, "beta_fast": 16, "beta_slow": 2.5},
        {"factor": 1.0, "beta_fast": 64.0, "mscale": 1.0},
    )
]
MIXTRAL = {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
LLAMA3_ROPE = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip


@pytest.fixture
def tiny(tmp_path: Path) -> tuple[LlamaForCausalLM, Path]:
    torch.manual_seed(0)
    model = LlamaForCausalLM(HfLlamaConfig(**TINY, tie_word_embeddings=False)).eval()
    model.save_pretrained(tmp_path)
    return model, tmp_path


def logits(model: LlamaModel, token_ids: list[int]) -> torch.Tensor:
    table = tuple(range(1, 1 + len(token_ids)))
    positions = range(len(token_ids))
    batch = FlatBatch(token_ids, positions, table, [Segment(0, len(token_ids), 0, table)], [])
    cache = KvCache(model.config, num_blocks=len(token_ids) + 1, block_size=1)
    with torch.inference_mode():
        attention = PagedAttention(cache, batch, block_size=1)
        hidden = model.hidden_states(torch.tensor(token_ids), torch.tensor(positions), attention)
        return model.logits(hidden)


def assert_equal_logits(reference: LlamaForCausalLM, path: Path) -> None:
    token_ids = [3, 1, 4, 1, 5, 9, 2, 6]
    ours = logits(open_model(path).load(lambda ratio: None), token_ids)
    with torch.inference_mode():
        theirs = reference(torch.tensor([token_ids])).logits[0]
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def edit_config(directory: Path, **changes: Any) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_safetensors_give_the_logits_of_transformers(tiny: tuple[LlamaForCausalLM, Path]) -> None:
    assert_equal_logits(*tiny)


def test_sharded_safetensors_do_too(tiny: tuple[LlamaForCausalLM, Path], tmp_path: Path) -> None:
    model, _ = tiny
    sharded = tmp_path / "sharded"
    model.save_pretrained(sharded, max_shard_size="20KB")
    assert (sharded / "model.safetensors.index.json").exists()
    assert_equal_logits(model, sharded)


def test_half_precision_is_widened(tiny: tuple[LlamaForCausalLM, Path], tmp_path: Path) -> None:
    model, _ = tiny
    half = tmp_path / "half"
    model.to(torch.bfloat16).save_pretrained(half)
    assert_equal_logits(model.to(torch.float32), half)


def test_tied_embeddings_are_shared(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = LlamaForCausalLM(HfLlamaConfig(**TINY, tie_word_embeddings=True)).eval()
    model.save_pretrained(tmp_path)
    assert_equal_logits(model, tmp_path)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"type": "linear", "factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        (LLAMA3_ROPE, LLAMA3_ROPE),
        (LLAMA3_ROPE | {"factor": 32.0}, LLAMA3_ROPE | {"factor": 32.0}),
        ({"type": "yarn", "factor": 4.0} | YARN, {"rope_type": "yarn", "factor": 4.0} | YARN),
        *[(odd, odd) for odd in ODD_YARNS],
    ],
    ids=["linear", "llama 3.1", "llama 3.2", "yarn", *(f"yarn {i}" for i in range(len(ODD_YARNS)))],
)
def test_frequencies_are_bit_for_bit_those_of_transformers(
    old: dict[str, Any], new: dict[str, Any]
) -> None:
    """As transformers 4 spells them and as 5 does."""
    metadata = TINY | {"model_type": "llama", "head_dim": 128, "rope_theta": 500_000.0}
    theirs = HfLlamaConfig(**metadata | {"rope_parameters": new | {"rope_theta": 500_000.0}})
    expected, factor = ROPE_INIT_FUNCTIONS[new["rope_type"]](theirs)
    powers = 500_000.0 ** (torch.arange(0, 128, 2, dtype=torch.int64).float() / 128)
    for spelling in ({"rope_scaling": old}, theirs.to_dict()):
        ours = config_from_hf(metadata | spelling)
        assert ours.rope_theta == 500_000.0
        assert ours.rope_scaling is not None
        scaled = ours.rope_scaling.frequencies(powers.numpy())
        assert torch.equal(torch.from_numpy(scaled), expected)
        assert ours.rope_scaling.attention_factor == factor


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gemma2"}, "model_type one of .* got 'gemma2'"),
        ({"sliding_window": 32}, "sliding_window=32"),
        ({"model_type": "mistral", "sliding_window": 0}, "sliding_window=0"),
        ({"model_type": "mistral", "layer_types": ["full_attention"] * 2}, "'full_attention'"),
        ({"model_type": "qwen2", "layer_types": ["sliding_attention"] * 2}, "'sliding_attention'"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "'sliding_attention'"),
        ({"layer_types": ["full_attention"]}, "layer_types: expected 2, got"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping=50"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping=30"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor=0.5"),
        ({"rope_parameters": "yarn"}, "rope_parameters='yarn'"),
        ({"num_local_experts": 8}, "num_local_experts=8"),
        (MIXTRAL | {"num_experts": 4}, "num_local_experts=8"),
        (MIXTRAL | {"moe_intermediate_size": 8}, "moe_intermediate_size=8"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ({"attention_bias": True}, "attention_bias=True"),
        ({"mlp_bias": True}, "mlp_bias=True"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8}}, "low_freq_factor=None"),
        ({"rope_scaling": LLAMA3_ROPE | {"low_freq_factor": 4}}, "low_freq_factor is not below"),
        ({"rope_scaling": {"type": "linear"}}, "factor=None"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2}}, "rope type 'dynamic'"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "rope type 'longrope'"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 0.5}}, "factor=0.5"),
        ({"rope_scaling": YARN | {"type": "yarn", "factor": "4"}}, "factor='4'"),
        ({"rope_scaling": YARN | {"type": "yarn", "truncate": 1}}, "truncate=1"),
        ({"rope_scaling": YARN | {"type": "yarn", "beta_fast": 1}}, "beta_fast 1.0 is not above"),
        ({"rope_scaling": YARN | {"type": "yarn", "attn_factor": 2}}, "attn_factor=2"),
        ({"num_hidden_layers": "two"}, "num_hidden_layers='two'"),
        ({"hidden_size": 0}, "hidden_size=0"),
        ({"num_key_value_heads": 3}, "do not divide"),
    ],
)
def test_hf_config_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    config = {"model_type": "llama", "rms_norm_eps": 1e-5, **TINY}
    assert config_from_hf(config).head_dim == 8
    with pytest.raises(ModelError, match=message):
        config_from_hf(config | changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"general.architecture": "qwen2"}, "architecture 'llama', got 'qwen2'"),
        ({"llama.rope.scaling.type": "yarn"}, "llama.rope.scaling.type='yarn'"),
        ({"llama.expert_count": 8}, "llama.expert_count=8"),
        ({"llama.rope.dimension_count": 4}, "llama.rope.dimension_count=4"),
        ({"split.count": 2}, "split.count=2"),
        ({"llama.block_count": None}, "llama.block_count=None"),
    ],
)
def test_gguf_metadata_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    assert config_from_gguf(GGUF).num_kv_heads == 2
    with pytest.raises(ModelError, match=message):
        config_from_gguf(GGUF | changes)


def test_tensor_of_another_architecture_is_refused(
    tiny: tuple[LlamaForCausalLM, Path],
) -> None:
    _, path = tiny
    edit_config(path, num_hidden_layers=1)
    with pytest.raises(ModelUnsupported, match=r"model\.layers\.1\."):
        open_model(path).load(lambda ratio: None)


def test_missing_tensor_is_named(tiny: tuple[LlamaForCausalLM, Path]) -> None:
    _, path = tiny
    edit_config(path, num_hidden_layers=3)
    with pytest.raises(ModelInvalid, match=r"model\.layers\.2\.\S+ is missing"):
        open_model(path).load(lambda ratio: None)


def test_misshapen_tensor_is_named(tiny: tuple[LlamaForCausalLM, Path]) -> None:
    _, path = tiny
    edit_config(path, intermediate_size=40)
    with pytest.raises(ModelInvalid, match=r"expected shape \(40, 32\), got \(48, 32\)"):
        open_model(path).load(lambda ratio: None)


def test_directory_without_weights_is_not_a_model(tiny: tuple[LlamaForCausalLM, Path]) -> None:
    _, path = tiny
    (path / "model.safetensors").unlink()
    with pytest.raises(ModelNotFound, match="neither"):
        open_model(path)


def gguf(*fields: bytes, num_fields: int | None = None, version: int = 3) -> bytes:
    count = len(fields) if num_fields is None else num_fields
    return b"GGUF" + struct.pack("<IQQ", version, 0, count) + b"".join(fields)


def gguf_string(name: str, value: str) -> bytes:
    def text(t: str) -> bytes:
        return struct.pack("<Q", len(t)) + t.encode()

    return text(name) + struct.pack("<I", 8) + text(value)


def test_gguf_metadata_is_read(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf(gguf_string("general.architecture", "llama")))
    assert GgufFile(path).metadata == {"general.architecture": "llama"}


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"GGUF",
        b"ELF?" + bytes(100),
        gguf(version=9),
        gguf(num_fields=1),
        gguf(num_fields=1 << 60),
        gguf(gguf_string("a", "b")[:-1]),
        gguf(struct.pack("<Q", 1 << 62) + b"abc"),
        gguf(struct.pack("<Q", 1) + b"k" + struct.pack("<I", 99)),
    ],
    ids=[
        "empty", "cut header", "other file", "version", "no fields", "absurd count", "cut string",
        "absurd length", "unknown type",
    ],
)  # fmt: skip
def test_damaged_gguf_is_refused(payload: bytes, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(payload)
    with pytest.raises(ModelInvalid, match=r"m\.gguf"):
        GgufFile(path)


def test_cut_off_weights_are_noticed_on_opening(model_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    with model_path.open("rb") as whole:
        path.write_bytes(whole.read(90_000_000))
    with pytest.raises(ModelInvalid, match="beyond the end"):
        open_model(path)


def test_a_header_is_read_once(tiny: tuple[LlamaForCausalLM, Path], tmp_path: Path) -> None:
    """However many tensors it tells of."""
    source, target = tiny[1] / "model.safetensors", tmp_path / "model.safetensors"
    target.write_bytes(source.read_bytes())
    before, directory = SafetensorsDirectory(tiny[1]), SafetensorsDirectory(tmp_path)
    length = int.from_bytes(source.read_bytes()[:8], "little")
    with target.open("r+b") as file:
        file.seek(8)
        file.write(b"?" * length)
    for name in directory.names():
        np.testing.assert_array_equal(directory.load(name), before.load(name))
