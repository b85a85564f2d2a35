"""Text to token ids, token ids to bytes, conversations to prompts.

Every token is a run of bytes (``token_bytes``), so incremental decoding is exact.  No torch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer as FastTokenizer

from replica.errors import ModelInvalid, ModelUnsupported
from replica.model.chat_template import ChatTemplate
from replica.model.token_bytes import token_bytes


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None  # None: prompts begin without one
    template_names: Mapping[str, str]  # bos_token, eos_token: their text


class Tokenizer:
    """Thread safe; the heavy calls let go of the interpreter lock."""

    def __init__(
        self,
        fast: FastTokenizer,
        special: SpecialTokens,
        chat_template: ChatTemplate | None,
        *,
        model_vocab_size: int | None = None,
    ) -> None:
        """Raises ModelUnsupported, or ModelInvalid where the model cannot have made these tokens.

        model_vocab_size: where the model may have rows to spare (Qwen's is padded): like control
        tokens they can be drawn, and stand for no bytes.
        """
        self._fast = fast
        self._special = special
        self._chat_template = chat_template
        self.token_bytes = token_bytes(fast)
        if model_vocab_size is not None:
            _refuse_beyond(model_vocab_size, len(self.token_bytes), special)
            self.token_bytes += [b""] * (model_vocab_size - len(self.token_bytes))
        # Canonical composition, the only normalizer we meet that takes bytes away, shrinks text
        # threefold at most: nine bytes of Korean letters become a syllable of three.
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

    def token_text(self, token_id: int) -> str:
        """For people.  As OpenAI writes them: no text of their own have parts of characters."""
        token_bytes = self.token_bytes[token_id]
        if not token_bytes:
            return self._fast.id_to_token(token_id) or f"<unused {token_id}>"
        try:
            return token_bytes.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token_bytes)

    def render_chat(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Raises InvalidRequest."""
        if self._chat_template is None:
            raise ModelUnsupported("the model has no chat template")
        return self._chat_template.render(messages)


def _refuse_beyond(vocab_size: int, num_tokens: int, special: SpecialTokens) -> None:
    """Raises ModelInvalid: the model has no row for such a token, neither to read nor to draw."""
    if num_tokens > vocab_size:
        raise ModelInvalid(f"the tokenizer has {num_tokens} tokens, the model only {vocab_size}")
    bos = () if special.bos_token_id is None else (special.bos_token_id,)
    for token_id in (*special.eos_token_ids, *bos):
        if not 0 <= token_id < vocab_size:
            raise ModelInvalid(f"special token id {token_id} is outside the vocabulary")
