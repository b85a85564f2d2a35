"""Ten thousand lines of text, tokenized as GPT-2's own encoder does it, word by word in Python."""

import functools
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
import regex

from replica.model.gguf_file import GgufFile
from replica.model.token_bytes import byte_by_char
from replica.model.tokenizer import Tokenizer

NUM_LINES: Final = 10_000
ROOT: Final = Path(__file__).parents[2]
DIGIT: Final = regex.compile(r"(\p{N})")  # stands alone in this model's vocabulary
WORD: Final = regex.compile(
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
)  # Radford et al. 2019, encoder.py


def lines() -> Iterator[str]:
    """Prose of several languages, code, and whatever else stands in this repository."""
    prose = [*sorted(ROOT.glob("**/*.md")), ROOT / "benchmarks" / "quality_text.txt"]
    code = sorted(path for path in ROOT.glob("*/**/*.py") if not path.parts[-2].startswith("."))
    for path in [*prose, *code]:
        yield from path.read_text(errors="replace").split("\n")


@pytest.fixture(scope="module")
def encode(model_path: Path) -> Callable[[str], list[int]]:
    metadata = GgufFile(model_path).metadata
    ids = {token: index for index, token in enumerate(metadata["tokenizer.ggml.tokens"])}
    merges = metadata["tokenizer.ggml.merges"]
    ranks = {tuple(merge.split(" ", 1)): rank for rank, merge in enumerate(merges)}
    chars = {byte: char for char, byte in byte_by_char().items()}

    @functools.cache
    def encode_word(word: str) -> list[int]:
        symbols = [chars[byte] for byte in word.encode() if chars[byte] in ids]
        while len(symbols) > 1:
            pairs = list(itertools.pairwise(symbols))
            best = min(pairs, key=lambda pair: ranks.get(pair, len(ranks)))
            if best not in ranks:
                break
            symbols = merged(symbols, best)
        return [ids[symbol] for symbol in symbols]

    def encode(text: str) -> list[int]:
        pieces = DIGIT.split(text)
        words = (word for piece in pieces for word in WORD.findall(piece))
        return [token_id for word in words for token_id in encode_word(word)]

    return encode


def merged(symbols: list[str], pair: tuple[str, str]) -> list[str]:
    """Every occurrence, from the left."""
    result: list[str] = []
    index = 0
    while index < len(symbols):
        size = 2 if tuple(symbols[index : index + 2]) == pair else 1
        result.append("".join(symbols[index : index + size]))
        index += size
    return result


def test_ten_thousand_lines(tokenizer: Tokenizer, encode: Callable[[str], list[int]]) -> None:
    controls = [tokenizer.decode([index]) for index in range(17)]
    plain = (line for line in lines() if not any(control in line for control in controls))
    taken = list(itertools.islice(plain, NUM_LINES))
    assert len(taken) == NUM_LINES
    for line in taken:
        assert tokenizer.encode(line) == encode(line), line
