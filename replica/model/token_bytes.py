"""The bytes each token stands for, read from its vocabulary: two kinds, others are refused by name.

Byte-level BPE (GPT-2, Llama 3, Qwen): a character of the vocabulary is a byte.  SentencePiece with
byte fallback (Llama 2, Mistral): "\u2581" is a space, ``<0xE2>`` a byte, anything else its own
text.  There the space in front of a whole text is the tokenizer's own and is taken off again; a
token in an answer stands behind a prompt, and keeps it.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders

from replica.errors import ModelUnsupported

_SPACE: Final = "\u2581"
_BYTE: Final = re.compile(r"<0x([0-9A-F]{2})>")
_SENTENCE_PIECE: Final = (
    {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
    {"type": "ByteFallback"},
    {"type": "Fuse"},
)
_STRIP: Final = {"type": "Strip", "content": " ", "start": 1, "stop": 0}


def token_bytes(fast: FastTokenizer) -> list[bytes]:
    """Index: token id.  Control tokens are empty: they are never part of an answer."""
    bytes_of = _reader(fast)
    added = fast.get_added_tokens_decoder()
    table = [b""] * fast.get_vocab_size(with_added_tokens=True)
    for token, token_id in fast.get_vocab(with_added_tokens=True).items():
        if token_id >= len(table):
            raise ModelUnsupported("the tokenizer's ids have gaps")
        if token_id in added:
            table[token_id] = b"" if added[token_id].special else token.encode()
        else:
            table[token_id] = bytes_of(token)
    return table


def _reader(fast: FastTokenizer) -> Callable[[str], bytes]:
    if isinstance(fast.decoder, decoders.ByteLevel):
        table = byte_by_char()
        return lambda token: _decode_chars(token, table)
    if not _is_sentence_piece(fast):
        raise ModelUnsupported(
            f"tokenizer decoder {fast.decoder!r} is neither byte-level nor SentencePiece's"
        )
    if any(fast.token_to_id(f"<0x{byte:02X}>") is None for byte in range(256)):
        raise ModelUnsupported("the tokenizer cannot fall back to bytes: some have no token")
    return _decode_piece


def _is_sentence_piece(fast: FastTokenizer) -> bool:
    settings: dict[str, Any] = msgspec.json.decode(fast.to_str())
    decoder = settings.get("decoder") or {}
    steps = tuple(decoder.get("decoders", ()))
    falls_back = bool(settings["model"].get("byte_fallback"))
    return falls_back and steps in (_SENTENCE_PIECE, (*_SENTENCE_PIECE, _STRIP))


def _decode_piece(token: str) -> bytes:
    byte = _BYTE.fullmatch(token)
    if byte is not None:
        return bytes.fromhex(byte[1])
    return token.replace(_SPACE, " ").encode()


def _decode_chars(token: str, table: Mapping[str, int]) -> bytes:
    """A vocabulary entry outside the alphabet stands for its own text, as in tokenizers."""
    try:
        return bytes([table[char] for char in token])
    except KeyError:
        return token.encode()


def byte_by_char() -> dict[str, int]:
    """GPT-2's printable alphabet of bytes.  Radford et al. 2019, encoder.py."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in printable}
    table.update({chr(256 + index): byte for index, byte in enumerate(others)})
    return table
