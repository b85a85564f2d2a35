"""Tokenizers of Hugging Face directories."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors
from tokenizers import Tokenizer as FastTokenizer

from replica.errors import ModelError, ModelInvalid, ModelUnsupported
from replica.model.tokenizer import Tokenizer
from replica.model.tokenizer_loader import load_tokenizer
from tests.replica.conftest import FIXED_NOW


def byte_level() -> FastTokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {char: index for index, char in enumerate(alphabet)}
    fast = FastTokenizer(models.BPE(vocab=vocab, merges=[]))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    fast.add_special_tokens([AddedToken("<s>"), AddedToken("</s>")])  # 256, 257
    fast.add_tokens([AddedToken("<think>", special=False)])  # 258
    return fast


def with_template(fast: FastTokenizer, template: str) -> FastTokenizer:
    fast.post_processor = processors.TemplateProcessing(
        single=template, special_tokens=[("<s>", 256), ("</s>", 257)]
    )
    return fast


def load(directory: Path, fast: FastTokenizer, **settings: Any) -> Tokenizer:
    fast.save(str(directory / "tokenizer.json"))
    (directory / "config.json").write_text(json.dumps({"eos_token_id": [257]}))
    defaults = {"bos_token": "<s>", "eos_token": {"content": "</s>"}}
    (directory / "tokenizer_config.json").write_text(json.dumps(defaults | settings))
    return load_tokenizer(directory, lambda: FIXED_NOW)


def test_text_comes_back(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, byte_level())
    ids = tokenizer.encode("naïve 🦜</s>")
    assert ids[-1] == 257
    assert b"".join(tokenizer.token_bytes[i] for i in ids).decode() == "naïve 🦜"
    assert tokenizer.token_bytes[258] == b"<think>"
    assert tokenizer.eos_token_ids == (257,)


def test_generation_config_adds_its_ends(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [257, 256]}')
    assert load(tmp_path, byte_level()).eos_token_ids == (257, 256)


def test_bos_of_the_post_processor_is_put_in_front_once(tmp_path: Path) -> None:
    template = "{{ bos_token }}{{ messages[0]['content'] }}"
    tokenizer = load(tmp_path, with_template(byte_level(), "<s> $A"), chat_template=template)
    chat = tokenizer.render_chat([{"role": "user", "content": "hi"}])
    assert chat == "<s>hi"
    assert tokenizer.encode(chat) == tokenizer.encode("hi")
    assert tokenizer.encode("hi")[0] == 256
    assert tokenizer.encode("hi").count(256) == 1


def test_template_file_wins_and_lists_of_templates_have_a_default(tmp_path: Path) -> None:
    listed = [{"name": "default", "template": "listed"}, {"name": "rag", "template": "rag"}]
    assert load(tmp_path, byte_level(), chat_template=listed).render_chat([]) == "listed"
    (tmp_path / "chat_template.jinja").write_text("file")
    assert load(tmp_path, byte_level(), chat_template=listed).render_chat([]) == "file"


def test_without_a_template_there_is_no_chat(tmp_path: Path) -> None:
    assert not load(tmp_path, byte_level()).has_chat_template


def test_post_processor_that_adds_an_end_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelUnsupported, match="more than a BOS"):
        load(tmp_path, with_template(byte_level(), "<s> $A </s>"))


def test_decoder_that_is_not_byte_level_is_refused(tmp_path: Path) -> None:
    fast = byte_level()
    fast.decoder = decoders.Metaspace()
    with pytest.raises(ModelUnsupported, match="neither byte-level nor"):
        load(tmp_path, fast)


@pytest.mark.parametrize(
    ("name", "content"),
    [("tokenizer.json", "{"), ("tokenizer_config.json", '{"a":' + "[" * 100_000)],
    ids=["cut off", "too deep"],
)
def test_damaged_file_is_named(tmp_path: Path, name: str, content: str) -> None:
    load(tmp_path, byte_level())
    (tmp_path / name).write_text(content)
    with pytest.raises(ModelInvalid, match=name):
        load_tokenizer(tmp_path, lambda: FIXED_NOW)


@pytest.mark.parametrize(
    ("vocab_size", "eos_token_id", "reason"),
    [
        (258, 257, "259 tokens, the model only 258"),
        (320, 320, "320 is outside the vocabulary"),
        (1 << 40, 257, "vocab_size=1099511627776"),
    ],
    ids=["a token beyond the model", "an end beyond the model", "a huge model"],
)
def test_tokens_that_the_model_has_no_row_for_are_refused(
    tmp_path: Path, vocab_size: int, eos_token_id: int, reason: str
) -> None:
    load(tmp_path, byte_level())
    config = {"vocab_size": vocab_size, "eos_token_id": eos_token_id}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=reason):
        load_tokenizer(tmp_path, lambda: FIXED_NOW)


def test_rows_of_the_model_without_a_token_stand_for_no_bytes(tmp_path: Path) -> None:
    load(tmp_path, byte_level())
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 320, "eos_token_id": 257}))
    tokenizer = load_tokenizer(tmp_path, lambda: FIXED_NOW)
    assert tokenizer.vocab_size == 320
    assert (tokenizer.token_bytes[319], tokenizer.token_text(319)) == (b"", "<unused 319>")
    assert tokenizer.decode([97, 319]) == tokenizer.decode([97])
