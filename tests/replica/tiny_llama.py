"""Llamas of a few thousand weights, written as the files they come in."""

from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np

VOCAB_SIZE = 64
HIDDEN, INTERMEDIATE, NUM_LAYERS, NUM_HEADS, NUM_KV_HEADS, HEAD_DIM = 64, 96, 2, 4, 2, 32
Kind = gguf.GGMLQuantizationType

SHAPES: Mapping[str, tuple[int, int]] = {
    "attn_q": (NUM_HEADS * HEAD_DIM, HIDDEN),
    "attn_k": (NUM_KV_HEADS * HEAD_DIM, HIDDEN),
    "attn_v": (NUM_KV_HEADS * HEAD_DIM, HIDDEN),
    "attn_output": (HIDDEN, NUM_HEADS * HEAD_DIM),
    "ffn_gate": (INTERMEDIATE, HIDDEN),
    "ffn_up": (INTERMEDIATE, HIDDEN),
    "ffn_down": (HIDDEN, INTERMEDIATE),
}


def write_gguf(path: Path, kinds: Mapping[str, Kind], seed: int = 7) -> None:
    """``kinds``: of ``token_embd``, ``output`` (left out: tied), and each name in ``SHAPES``."""
    generator = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(NUM_LAYERS)
    writer.add_feed_forward_length(INTERMEDIATE)
    writer.add_head_count(NUM_HEADS)
    writer.add_head_count_kv(NUM_KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_context_length(256)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_token_list([f"t{i}" for i in range(VOCAB_SIZE)])

    def matrix(name: str, shape: tuple[int, int], kind: Kind) -> None:
        dense = generator.standard_normal(shape).astype(np.float32) * 0.3
        writer.add_tensor(f"{name}.weight", gguf.quants.quantize(dense, kind), raw_dtype=kind)

    def norm(name: str) -> None:
        writer.add_tensor(f"{name}.weight", generator.uniform(0.5, 1.5, HIDDEN).astype(np.float32))

    matrix("token_embd", (VOCAB_SIZE, HIDDEN), kinds["token_embd"])
    for layer in range(NUM_LAYERS):
        norm(f"blk.{layer}.attn_norm")
        norm(f"blk.{layer}.ffn_norm")
        for name, shape in SHAPES.items():
            matrix(f"blk.{layer}.{name}", shape, kinds[name])
    norm("output_norm")
    if "output" in kinds:
        matrix("output", (VOCAB_SIZE, HIDDEN), kinds["output"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
