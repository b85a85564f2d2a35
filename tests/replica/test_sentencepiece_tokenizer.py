"""Tokenizers as Llama 2 and Mistral ship them: SentencePiece's, falling back to bytes."""

from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as FastTokenizer

from replica.engine.detokenizer import Detokenizer
from replica.errors import ModelUnsupported
from replica.model.tokenizer import Tokenizer
from tests.replica.test_hf_tokenizer import load

SPACE: Final = "\u2581"
TEXT: Final = st.lists(st.one_of(st.sampled_from("the and."), st.characters(codec="utf-8"))).map(
    "".join
)
UNHURRIED: Final = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
CONTROL: Final = ["<unk>", "<s>", "</s>"]
MERGES: Final = [("t", "h"), ("th", "e"), (SPACE, "the"), (SPACE, "a"), ("n", "d"), (SPACE, SPACE)]


def sentence_piece(*, is_legacy: bool, bytes_known: int = 256) -> FastTokenizer:
    """Legacy: a normalizer writes the spaces, as converters did before Mistral 0.3."""
    letters = [SPACE, *"abcdehnt.", "\u00e9"]
    tokens = [*CONTROL, *(f"<0x{byte:02X}>" for byte in range(bytes_known)), *letters]
    tokens += ["".join(pair) for pair in MERGES]
    fast = FastTokenizer(
        models.BPE(
            vocab={token: index for index, token in enumerate(tokens)},
            merges=list(MERGES),
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    if is_legacy:
        fast.normalizer = normalizers.Sequence(
            [normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)]
        )
    else:
        fast.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, prepend_scheme="first", split=False)
    fast.decoder = decoders.Sequence(
        [
            decoders.Replace(SPACE, " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    fast.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    fast.add_special_tokens([AddedToken(token, normalized=False) for token in CONTROL])
    return fast


def load_it(directory: Path, fast: FastTokenizer, **settings: Any) -> Tokenizer:
    tokenizer = load(directory, fast, **settings)
    assert tokenizer.vocab_size == fast.get_vocab_size()
    return tokenizer


@pytest.fixture(params=[True, False], ids=["legacy", "metaspace"])
def fast(request: pytest.FixtureRequest) -> FastTokenizer:
    return sentence_piece(is_legacy=request.param)


def test_tokens_are_bytes(fast: FastTokenizer, tmp_path: Path) -> None:
    tokenizer = load_it(tmp_path, fast)
    table = tokenizer.token_bytes
    assert [table[fast.token_to_id(token)] for token in CONTROL] == [b"", b"", b""]
    assert table[fast.token_to_id(SPACE + "the")] == b" the"
    assert table[fast.token_to_id("<0xE2>")] == b"\xe2"
    assert table[fast.token_to_id("\u00e9")] == "\u00e9".encode()


def test_bos_is_put_in_front_once(fast: FastTokenizer, tmp_path: Path) -> None:
    template = "{{ bos_token }}{{ messages[0]['content'] }}"
    tokenizer = load_it(tmp_path, fast, chat_template=template)
    chat = tokenizer.encode(tokenizer.render_chat([{"role": "user", "content": "and"}]))
    assert chat[0] == 1
    assert chat.count(1) == 1
    assert tokenizer.encode("and")[0] == 1


@settings(max_examples=80, suppress_health_check=UNHURRIED)
@given(text=TEXT)
def test_decode_inverts_encode(fast: FastTokenizer, tmp_path: Path, text: str) -> None:
    """But for the character that stands for a space; a space in front may be taken for its own."""
    tokenizer = load_it(tmp_path, fast)
    text = text.replace(SPACE, "")
    token_ids = tokenizer.encode(text)
    assert tokenizer.min_num_tokens(text) <= len(token_ids)
    puts_none_before_one = fast.pre_tokenizer is not None
    read = text.removeprefix(" ") if puts_none_before_one else text
    assert tokenizer.decode(token_ids[1:]) == read


@settings(max_examples=80, suppress_health_check=UNHURRIED)
@given(text=TEXT)
def test_pieces_of_an_answer_join_to_what_the_library_reads(
    fast: FastTokenizer, tmp_path: Path, text: str
) -> None:
    """An answer stands behind a prompt: its first space is no artefact."""
    tokenizer = load_it(tmp_path, fast)
    prompt = tokenizer.encode("a")
    answer = tokenizer.encode(text.replace(SPACE, ""), add_special_tokens=False)
    detokenizer = Detokenizer(tokenizer.token_bytes, [])
    pieces = [
        detokenizer.push(token_id, may_stop=True, is_last=index == len(answer) - 1).text
        for index, token_id in enumerate(answer)
    ]
    whole = fast.decode([*prompt, *answer])
    assert "".join(pieces) == whole[len(fast.decode(prompt)) :]


def test_a_byte_without_a_token_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelUnsupported, match="some have no token"):
        load_it(tmp_path, sentence_piece(is_legacy=False, bytes_known=255))


def test_another_decoder_is_refused(fast: FastTokenizer, tmp_path: Path) -> None:
    fast.decoder = decoders.Sequence([decoders.Fuse(), decoders.Metaspace()])
    with pytest.raises(ModelUnsupported, match="neither byte-level nor SentencePiece"):
        load_it(tmp_path, fast)
