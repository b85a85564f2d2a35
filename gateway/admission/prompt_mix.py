"""What a prompt is written in, judged by a sample of its JSON: a small number to learn by.

How many bytes a token takes depends on the script, on how dense it stands, and on whether JSON
escapes it.  Prose, code, digits, Cyrillic, Chinese and ``\\u4e2d`` differ up to twelvefold.  The
sample is bounded, so a prompt of megabytes costs what one of a kilobyte does.
"""

from collections.abc import Sequence
from typing import Final

_SAMPLE_BYTES: Final = 510
_PIECE_BYTES: Final = _SAMPLE_BYTES // 3  # of the beginning, the middle and the end
_NUM_LOOKED_AT: Final = 16  # characters by which a script is judged

_LETTERS: Final = bytes(b for b in range(128) if chr(b).isalpha())
_BACKSLASH: Final = 0x5C  # a number is found sooner than a text of one sign
_NOT_LEADING: Final = bytes(b for b in range(256) if b < 0xC2)  # ASCII, and the bytes that follow

# Bytes that begin a character, by the scripts behind them (Unicode's blocks in UTF-8).
_LATIN, _CYRILLIC, _ARABIC, _INDIC, _RARE, _KANA, _HAN, _HANGUL = range(8)


def _group_of(lead: int) -> int:
    for last, group in (
        (0xCB, _LATIN),  # with its diacritics
        (0xD3, _CYRILLIC),  # and Greek
        (0xDF, _ARABIC),  # and Hebrew, Armenian
        (0xE0, _INDIC),  # and Thai
        (0xE2, _RARE),  # Georgian, Khmer, typographic signs
        (0xE3, _KANA),  # and Chinese punctuation
        (0xE9, _HAN),
    ):
        if lead <= last:
            return group
    return _HANGUL if lead <= 0xEF else _RARE  # four bytes: emoji


_GROUP_TABLE: Final = bytes(_group_of(b) for b in range(256))


def _levels(*bounds: int) -> tuple[int, ...]:
    """By density in 1/64: how many of the rising bounds, in percent, it reaches."""
    return tuple(sum(100 * n >= 64 * bound for bound in bounds) for n in range(65))


_OF_SIGNS: Final = _levels(12, 22, 40)
_OF_SPACES: Final = _levels(3, 11, 21)
_OF_LEADS: Final = _levels(4, 16)
_OF_ESCAPES: Final = _levels(25, 60)

_NUM_ASCII: Final = 16  # 4 densities of signs and digits x 4 of spaces
_NUM_SCRIPTS: Final = 24  # 8 groups x 3 densities
_NUM_ESCAPED: Final = 12  # 4 ranges x 3 densities
_NUM_WRITINGS: Final = _NUM_ASCII + _NUM_SCRIPTS + _NUM_ESCAPED
_MANY_MESSAGES: Final = 3
NUM_MIXES: Final = _NUM_WRITINGS * (1 + _MANY_MESSAGES)


def mix_of(json_text: bytes | memoryview) -> int:
    """From 0 up to ``NUM_MIXES``.  ``json_text`` is not empty.

    What it is written in, and whether it holds one message or several: a template adds to each.
    """
    num_bytes = len(json_text)
    if num_bytes <= _SAMPLE_BYTES:
        text = bytes(json_text)
    else:
        middle = (num_bytes - _PIECE_BYTES) // 2
        until = middle + _PIECE_BYTES
        pieces = json_text[:_PIECE_BYTES], json_text[middle:until], json_text[-_PIECE_BYTES:]
        text = b"".join(pieces)
    num_messages = text.count(b'"role"')
    if num_messages > _MANY_MESSAGES:
        num_messages = _MANY_MESSAGES
    return num_messages * _NUM_WRITINGS + _writing_of(text)


def safe_ratio(mix: int) -> float:
    """Tokens a byte before anything is known of a model."""
    return _SAFE_RATIOS[mix % _NUM_WRITINGS]


def _writing_of(text: bytes) -> int:
    if not text.isascii():
        return _NUM_ASCII + _script_mix(text)
    num_backslashes = text.count(b"\\") if _BACKSLASH in text else 0
    if num_backslashes * 32 > len(text):
        escapes = text.split(b"\\u", _NUM_LOOKED_AT)[1:]
        if 2 * len(escapes) > min(num_backslashes, _NUM_LOOKED_AT):
            density = 64 * 6 * num_backslashes // len(text)
            return _NUM_ASCII + _NUM_SCRIPTS + _escaped_mix(escapes, density)
    num_bytes, rest = len(text), text.translate(None, _LETTERS)
    num_spaces = rest.count(b" ")
    num_signs = len(rest) - num_spaces
    return 4 * _OF_SIGNS[64 * num_signs // num_bytes] + _OF_SPACES[64 * num_spaces // num_bytes]


def _script_mix(text: bytes) -> int:
    leads = text.translate(_GROUP_TABLE, _NOT_LEADING)
    if not leads:
        return 3 * _RARE  # not UTF-8: somebody else refuses it
    some = leads[:: 1 + len(leads) // _NUM_LOOKED_AT]
    commonest = max(set(some), key=some.count)
    return 3 * commonest + _OF_LEADS[64 * len(leads) // len(text)]


def _escaped_mix(escapes: Sequence[bytes], density: int) -> int:
    """``\\u0041``: by the first digit, 0, 1 to 3, 4 to 9, or a letter."""
    ranges = bytes([_RANGE_TABLE[piece[0]] if piece else 0 for piece in escapes])
    commonest = max(set(ranges), key=ranges.count)
    return 3 * commonest + _OF_ESCAPES[min(64, density)]


_RANGE_TABLE: Final = bytes(
    0 if b <= 0x30 else 1 if b <= 0x33 else 2 if b <= 0x39 else 3 for b in range(256)
)


_SAFE_RATIOS: Final = (
    # ASCII, a line by density of signs and digits, in it by density of spaces
    *(0.9, 0.4, 0.28, 0.4),
    *(0.9, 0.9, 0.42, 0.42),
    *(0.85, 0.65, 0.46, 0.4),
    *(1.0, 1.0, 0.6, 0.6),
    # scripts, by density
    *(0.42, 0.65, 0.65),
    *(0.45, 0.55, 0.6),
    *(0.5, 0.6, 0.7),
    *(0.5, 0.6, 0.75),
    *(0.5, 0.7, 1.0),
    *(0.5, 0.6, 0.75),
    *(0.5, 0.6, 0.75),
    *(0.5, 0.7, 1.0),
    # escaped, by density
    *(0.35, 0.45, 0.45),
    *(0.4, 0.45, 0.45),
    *(0.3, 0.35, 0.4),
    *(0.3, 0.35, 0.55),
)
"""Tokens a byte by mix, a seventh above the most that a vocabulary of 49,000 English tokens made of
``benchmarks/prompt_corpus.py``; today's larger vocabularies make fewer of everything."""
