"""The tokenizer built from GGUF metadata.  Ids were read off llama.cpp's llama-tokenize."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replica.engine.detokenizer import Detokenizer
from replica.errors import InvalidRequest, ModelInvalid, ModelUnsupported
from replica.model.chat_template import ChatTemplate
from replica.model.tokenizer import Tokenizer
from replica.model.tokenizer_loader import tokenizer_from_gguf
from tests.replica.conftest import FIXED_NOW


def tiny_metadata(**changes: Any) -> dict[str, Any]:
    """A byte-level vocabulary without merges beyond one."""
    printable = [chr(c) for c in (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))]
    tokens = ["<bos>", "<eos>", *printable, "Ġ", "ab"]
    metadata: dict[str, Any] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3, 3, *[1] * (len(tokens) - 2)],
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.chat_template": "{{ bos_token }}{{ messages[0]['content'] }}",
    }
    metadata.update({f"tokenizer.ggml.{name}": value for name, value in changes.items()})
    return metadata


def tiny(**changes: Any) -> Tokenizer:
    return tokenizer_from_gguf(tiny_metadata(**changes), lambda: FIXED_NOW)


def test_digits_stand_alone_and_spaces_group(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("  2018 x   42") == [256, 34, 32, 33, 40, 1792, 333, 36, 34]


def test_control_tokens_are_recognized(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("<|im_start|>user\nhi<|im_end|>")[0] == 1
    assert tokenizer.encode("hello<|im_end|>")[-1] == 2
    assert tokenizer.eos_token_ids == (2,)


def test_chat_prompt_is_what_the_model_was_trained_on(tokenizer: Tokenizer) -> None:
    assert tokenizer.render_chat([{"role": "user", "content": "Hi"}]) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


@settings(max_examples=60)
@given(text=st.text(st.characters(codec="utf-8"), max_size=60))
def test_decode_inverts_encode(tokenizer: Tokenizer, text: str) -> None:
    """This vocabulary lacks a few control bytes and two lead bytes, which BPE then drops."""
    known = {token[0] for token in tokenizer.token_bytes if len(token) == 1}
    text = "".join(char for char in text if known.issuperset(char.encode()))
    assert tokenizer.decode(tokenizer.encode(text)) == text


@settings(max_examples=60)
@given(ids=st.lists(st.integers(17, 49151), min_size=1, max_size=30))
def test_incremental_decoding_equals_decoding_at_once(tokenizer: Tokenizer, ids: list[int]) -> None:
    detokenizer = Detokenizer(tokenizer.token_bytes, [])
    pieces = [
        detokenizer.push(token_id, may_stop=True, is_last=index == len(ids) - 1).text
        for index, token_id in enumerate(ids)
    ]
    assert "".join(pieces) == tokenizer.decode(ids)


@settings(max_examples=60)
@given(text=st.text(st.characters(codec="utf-8"), max_size=200))
def test_fewest_possible_tokens_is_a_lower_bound(tokenizer: Tokenizer, text: str) -> None:
    known = {token[0] for token in tokenizer.token_bytes if len(token) == 1}
    text = "".join(char for char in text if known.issuperset(char.encode()))
    assert tokenizer.min_num_tokens(text) <= len(tokenizer.encode(text))


def test_fewest_possible_tokens_of_what_composes() -> None:
    """Nine bytes of Korean letters are one syllable of three."""
    qwen = tiny(pre="qwen2")
    text = "\u1112\u1161\u11ab" * 50
    assert 1 < qwen.min_num_tokens(text) <= len(qwen.encode(text))


def test_control_tokens_are_never_part_of_an_answer(tokenizer: Tokenizer) -> None:
    assert tokenizer.token_bytes[:3] == [b"", b"", b""]


def test_exactly_one_bos_is_put_in_front() -> None:
    wanting = tiny(add_bos_token=True)
    chat = wanting.render_chat([{"role": "user", "content": "ab"}])
    assert wanting.encode(chat) == wanting.encode("ab")
    assert wanting.encode("ab")[0] == 0
    assert wanting.encode("ab", add_special_tokens=False) == tiny().encode("ab")


def test_merges_are_applied() -> None:
    assert len(tiny().encode("ab")) == 1


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"model": "llama"}, ModelUnsupported, "tokenizer.ggml.model='llama'"),
        ({"pre": "tekken"}, ModelUnsupported, "tokenizer.ggml.pre='tekken'"),
        ({"pre": None}, ModelUnsupported, "tokenizer.ggml.pre=None"),
        ({"merges": []}, ModelInvalid, "merges is missing"),
        ({"eos_token_id": None}, ModelInvalid, "eos_token_id is missing"),
        ({"eos_token_id": 10_000}, ModelInvalid, "outside the vocabulary"),
    ],
)
def test_unknown_tokenizers_are_refused_by_name(
    changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        tiny(**changes)


@pytest.mark.parametrize("pre", ["gpt-2", "smollm", "llama-bpe", "qwen2"])
def test_known_pre_tokenizers_lose_nothing(pre: str) -> None:
    tokenizer = tiny(pre=pre)
    assert tokenizer.decode(tokenizer.encode("a1 b22!")) == "a1 b22!"


def test_template_that_refuses_blames_the_messages() -> None:
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}", {}, lambda: FIXED_NOW)
    with pytest.raises(InvalidRequest, match="roles must alternate") as caught:
        template.render([])
    assert caught.value.param == "messages"


def test_template_sees_the_date_it_is_given() -> None:
    template = ChatTemplate("{{ strftime_now('%Y-%m-%d') }}", {}, lambda: FIXED_NOW)
    assert template.render([]) == "2026-01-02"


def test_template_cannot_leave_its_sandbox() -> None:
    source = "{{ messages.__class__.__mro__ }}"
    with pytest.raises(InvalidRequest):
        ChatTemplate(source, {}, lambda: FIXED_NOW).render([])


def test_broken_template_is_a_broken_model() -> None:
    with pytest.raises(ModelInvalid, match="chat template"):
        ChatTemplate("{% for %}", {}, lambda: FIXED_NOW)
