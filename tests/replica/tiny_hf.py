"""A Llama of random weights with a vocabulary of bytes, as the folder that Hugging Face makes."""

import json
from pathlib import Path
from typing import Final

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.replica.test_hf_tokenizer import byte_level

VOCAB_SIZE: Final = 320  # more than the tokenizer's 259: padded, as Qwen's
_TEMPLATE = "{% for m in messages %}{{ m['role'] + ':' + m['content'] }}{% endfor %}"


def save_tiny_model(directory: Path, *, context_length: int) -> None:
    """Whole answers in a millisecond."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=context_length,
        eos_token_id=257,
    )
    LlamaForCausalLM(config).save_pretrained(directory)
    byte_level().save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": _TEMPLATE}))
