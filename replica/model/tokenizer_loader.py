"""Tokenizers from files: GGUF metadata, or a Hugging Face directory.  No torch."""

from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import msgspec
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as FastTokenizer

from contracts.errors import UNDECODABLE
from replica.errors import ModelInvalid, ModelUnsupported
from replica.model.chat_template import ChatTemplate
from replica.model.config import Metadata
from replica.model.damage import blaming
from replica.model.gguf_file import GgufFile
from replica.model.tokenizer import SpecialTokens, Tokenizer

_CONTROL: Final = 3  # llama.cpp's token types
_USER_DEFINED: Final = 4
_MAX_VOCAB_SIZE: Final = 1 << 22  # before anything proves it: what it costs is a table this long

_LLAMA3_SPLIT: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_SPLIT: Final = _LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")
_LLAMA3_NAMES: Final = ("llama-bpe", "llama3", "llama-v3")


def load_tokenizer(path: Path, now: Callable[[], datetime]) -> Tokenizer:
    """Raises ModelError, and nothing else for whatever stands in the files."""
    with blaming(path):
        if path.is_dir():
            return tokenizer_from_hf(path, now)
        return tokenizer_from_gguf(GgufFile(path).metadata, now)


def tokenizer_from_gguf(metadata: Metadata, now: Callable[[], datetime]) -> Tokenizer:
    """Raises ModelUnsupported or ModelInvalid."""
    kind = metadata.get("tokenizer.ggml.model")
    if kind != "gpt2":
        raise ModelUnsupported(f"tokenizer.ggml.model={kind!r} is not supported, only 'gpt2'")
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    merges = metadata.get("tokenizer.ggml.merges")
    if not merges:
        raise ModelInvalid("tokenizer.ggml.merges is missing")
    pre = metadata.get("tokenizer.ggml.pre")
    pairs = [tuple(merge.split(" ", 1)) for merge in merges]
    vocab = {token: index for index, token in enumerate(tokens)}
    fast = FastTokenizer(models.BPE(vocab=vocab, merges=pairs, ignore_merges=pre in _LLAMA3_NAMES))
    fast.pre_tokenizer = _pre_tokenizer(pre)
    fast.decoder = decoders.ByteLevel()
    if pre == "qwen2":
        fast.normalizer = normalizers.NFC()
    _add_special_tokens(fast, tokens, metadata.get("tokenizer.ggml.token_type", ()))
    special = _gguf_special_tokens(metadata, tokens)
    template = metadata.get("tokenizer.chat_template")
    chat = ChatTemplate(template, special.template_names, now) if template else None
    return Tokenizer(fast, special, chat)


def tokenizer_from_hf(directory: Path, now: Callable[[], datetime]) -> Tokenizer:
    """Raises ModelUnsupported or ModelInvalid."""
    path = directory / "tokenizer.json"
    if not path.exists():
        raise ModelInvalid(f"{directory.name}: tokenizer.json is missing")
    try:
        fast = FastTokenizer.from_file(str(path))
    except Exception as exc:  # the library raises nothing narrower
        raise ModelInvalid(f"tokenizer.json: {exc}") from exc
    settings = _read_json(directory / "tokenizer_config.json")
    special = _hf_special_tokens(directory, fast, settings)
    template = _hf_chat_template(directory, settings)
    chat = ChatTemplate(template, special.template_names, now) if template else None
    return Tokenizer(fast, special, chat, model_vocab_size=_hf_vocab_size(directory))


def _pre_tokenizer(pre: str | None) -> pre_tokenizers.PreTokenizer:
    """By llama.cpp's name for it."""
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if pre in ("gpt-2", "gpt2"):
        return byte_level
    if pre == "smollm":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    if pre in _LLAMA3_NAMES or pre == "qwen2":
        pattern = _QWEN2_SPLIT if pre == "qwen2" else _LLAMA3_SPLIT
        return pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    raise ModelUnsupported(f"tokenizer.ggml.pre={pre!r} is not supported")


def _add_special_tokens(
    fast: FastTokenizer, tokens: Sequence[str], token_types: Sequence[int]
) -> None:
    """Their ids do not change: they stand in the vocabulary already."""
    typed = list(zip(tokens, token_types, strict=False))
    fast.add_special_tokens(
        [AddedToken(t, special=True, normalized=False) for t, kind in typed if kind == _CONTROL]
    )
    fast.add_tokens([AddedToken(t, normalized=False) for t, kind in typed if kind == _USER_DEFINED])


def _gguf_special_tokens(metadata: Metadata, tokens: Sequence[str]) -> SpecialTokens:
    bos = metadata.get("tokenizer.ggml.bos_token_id")
    eos_keys = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")
    eos = [metadata[key] for key in eos_keys if metadata.get(key) is not None]
    for token_id in [*eos, *([] if bos is None else [bos])]:
        if not 0 <= token_id < len(tokens):
            raise ModelInvalid(f"special token id {token_id} is outside the vocabulary")
    if not eos:
        raise ModelInvalid("tokenizer.ggml.eos_token_id is missing")
    names = {"eos_token": tokens[eos[0]]}
    if bos is not None:
        names["bos_token"] = tokens[bos]
    wants_bos = metadata.get("tokenizer.ggml.add_bos_token", False)
    return SpecialTokens(tuple(dict.fromkeys(eos)), bos if wants_bos else None, names)


def _hf_special_tokens(directory: Path, fast: FastTokenizer, settings: Metadata) -> SpecialTokens:
    eos: list[int] = []
    for file_name in ("config.json", "generation_config.json"):
        value = _read_json(directory / file_name).get("eos_token_id")
        eos += value if isinstance(value, list) else [] if value is None else [value]
    names = {}
    for name in ("bos_token", "eos_token"):
        value = settings.get(name)
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            names[name] = text
    if not eos and "eos_token" in names:
        token_id = fast.token_to_id(names["eos_token"])
        eos += [] if token_id is None else [token_id]
    if not eos:
        raise ModelInvalid(f"{directory.name}: no file names an eos_token_id")
    return SpecialTokens(tuple(dict.fromkeys(eos)), _hf_bos(fast), names)


def _hf_bos(fast: FastTokenizer) -> int | None:
    """What the tokenizer's post-processor puts in front.  Anything but one token is refused."""
    bare: list[int] = fast.encode("a", add_special_tokens=False).ids
    framed: list[int] = fast.encode("a", add_special_tokens=True).ids
    if framed == bare:
        return None
    if framed[1:] == bare:
        return framed[0]
    raise ModelUnsupported("the tokenizer adds more than a BOS token")


def _hf_vocab_size(directory: Path) -> int | None:
    """None: the model's own reader refuses what stands there."""
    size = _read_json(directory / "config.json").get("vocab_size")
    if type(size) is not int:
        return None
    if size > _MAX_VOCAB_SIZE:
        raise ModelUnsupported(f"vocab_size={size} is not supported")
    return size


def _hf_chat_template(directory: Path, settings: Metadata) -> str | None:
    path = directory / "chat_template.jinja"
    if path.exists():
        return path.read_text("utf-8")
    template = settings.get("chat_template")
    if isinstance(template, list):
        by_name = {entry["name"]: entry["template"] for entry in template}
        template = by_name.get("default")
    return template


def _read_json(path: Path) -> dict[str, Any]:
    """Empty when the file is not there."""
    if not path.exists():
        return {}
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except UNDECODABLE as exc:
        raise ModelInvalid(f"{path.name}: {exc}") from exc
