"""Text to token ids, token ids to bytes, conversations to prompts.

Byte-level BPE only: every token is a run of bytes, so incremental decoding is exact.  Other kinds
are refused by name.  No torch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders

from replica.errors import ModelUnsupported
from replica.model.chat_template import ChatTemplate


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None  # None: prompts begin without one
    template_names: Mapping[str, str]  # bos_token, eos_token: their text


class Tokenizer:
    """Thread safe; the heavy calls let go of the interpreter lock."""

    def __init__(
        self, fast: FastTokenizer, special: SpecialTokens, chat_template: ChatTemplate | None
    ) -> None:
        """Raises ModelUnsupported."""
        self._fast = fast
        self._special = special
        self._chat_template = chat_template
        self.token_bytes = _token_bytes(fast)
        # Canonical composition, the only normalizer we meet, shrinks text threefold at most: nine
        # bytes of Korean letters become a syllable of three.
        shrinkage = 1 if fast.normalizer is None else 3
        added = (t.content.encode() for t in fast.get_added_tokens_decoder().values())
        self._max_bytes_per_token = shrinkage * max(map(len, (*self.token_bytes, *added)))

    @property
    def vocab_size(self) -> int:
        return len(self.token_bytes)

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        return self._special.eos_token_ids

    @property
    def has_chat_template(self) -> bool:
        return self._chat_template is not None

    def to_json(self) -> str:
        """As the ``tokenizers`` library reads it; megabytes."""
        return str(self._fast.to_str())

    def min_num_tokens(self, text: str) -> int:
        """What ``encode`` gives at least, at the cost of a division."""
        return -(-len(text.encode()) // self._max_bytes_per_token)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """With the BOS token in front if the model wants one and the text does not have it."""
        token_ids: list[int] = self._fast.encode(text, add_special_tokens=False).ids
        bos = self._special.bos_token_id
        if add_special_tokens and bos is not None and token_ids[:1] != [bos]:
            return [bos, *token_ids]
        return token_ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """Control tokens included, as their text: what ``encode`` reads back."""
        return self._fast.decode(list(token_ids), skip_special_tokens=False)

    def render_chat(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Raises InvalidRequest."""
        if self._chat_template is None:
            raise ModelUnsupported("the model has no chat template")
        return self._chat_template.render(messages)


def _token_bytes(fast: FastTokenizer) -> list[bytes]:
    """Index: token id.  Control tokens are empty: they are never part of an answer."""
    if not isinstance(fast.decoder, decoders.ByteLevel):
        raise ModelUnsupported(f"tokenizer decoder {fast.decoder!r} is not byte-level")
    byte_by_char = _byte_by_char()
    added = fast.get_added_tokens_decoder()
    table = [b""] * fast.get_vocab_size(with_added_tokens=True)
    for token, token_id in fast.get_vocab(with_added_tokens=True).items():
        if token_id >= len(table):
            raise ModelUnsupported("the tokenizer's ids have gaps")
        if token_id in added:
            table[token_id] = b"" if added[token_id].special else token.encode()
        else:
            table[token_id] = _decode_chars(token, byte_by_char)
    return table


def _decode_chars(token: str, byte_by_char: Mapping[str, int]) -> bytes:
    """A vocabulary entry outside the alphabet stands for its own text, as in tokenizers."""
    try:
        return bytes([byte_by_char[char] for char in token])
    except KeyError:
        return token.encode()


def _byte_by_char() -> dict[str, int]:
    """GPT-2's printable alphabet of bytes.  Radford et al. 2019, encoder.py."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in printable}
    table.update({chr(256 + index): byte for index, byte in enumerate(others)})
    return table
