"""Logprobs as the OpenAI API tells them: one shape for chats, an older one for completions.

Every token that is counted has an entry, also an end of the answer and the tokens of a stop string:
the entries of an answer are its ``completion_tokens``.
"""

import codecs
from collections.abc import Sequence

import msgspec

from replica.engine.live_request import Piece
from replica.engine.messages import TokenLogprobs
from replica.model.tokenizer import Tokenizer


class _TopLogprob(msgspec.Struct, frozen=True, kw_only=True):
    token: str
    logprob: float
    bytes: list[int]  # those of the entries together are the answer's; a control token has none


class _ChatLogprob(_TopLogprob, frozen=True, kw_only=True):
    top_logprobs: list[_TopLogprob]


class ChatLogprobsBody(msgspec.Struct, frozen=True, kw_only=True):
    content: list[_ChatLogprob]
    refusal: None = None


class TextLogprobsBody(msgspec.Struct, frozen=True, kw_only=True):
    text_offset: list[int]
    token_logprobs: list[float]
    tokens: list[str]
    top_logprobs: list[dict[str, float]] | None


Logprobs = ChatLogprobsBody | TextLogprobsBody


class ChatLogprobs:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def of(self, piece: Piece) -> ChatLogprobsBody | None:
        """None: nothing was generated for it."""
        if not piece.logprobs:
            return None
        return ChatLogprobsBody(
            content=[
                self._entry(token_id, told)
                for token_id, told in zip(piece.token_ids, piece.logprobs, strict=True)
            ]
        )

    def _entry(self, token_id: int, told: TokenLogprobs) -> _ChatLogprob:
        tops = zip(told.top_token_ids, told.top_logprobs, strict=True)
        return _ChatLogprob(
            token=self._tokenizer.token_text(token_id),
            logprob=told.logprob,
            bytes=list(self._tokenizer.token_bytes[token_id]),
            top_logprobs=[
                _TopLogprob(
                    token=self._tokenizer.token_text(top_id),
                    logprob=logprob,
                    bytes=list(self._tokenizer.token_bytes[top_id]),
                )
                for top_id, logprob in tops
            ],
        )


class TextLogprobs:
    """Knows how far each choice's text has come: a piece says where its tokens begin in it."""

    def __init__(self, tokenizer: Tokenizer, resumed_token_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._resumed_token_ids = resumed_token_ids
        self._places: dict[int, _Place] = {}

    def of(self, piece: Piece) -> TextLogprobsBody | None:
        """None: nothing was generated for it.  Pieces of a choice come in order, each once."""
        if not piece.logprobs:
            return None
        place = self._places.get(piece.index)
        if place is None:
            place = self._places[piece.index] = _Place(self._tokenizer, self._resumed_token_ids)
        has_top = any(told.top_token_ids for told in piece.logprobs)
        return TextLogprobsBody(
            text_offset=[place.advance(token_id) for token_id in piece.token_ids],
            token_logprobs=[told.logprob for told in piece.logprobs],
            tokens=[self._tokenizer.token_text(token_id) for token_id in piece.token_ids],
            top_logprobs=[
                self._top(token_id, told)
                for token_id, told in zip(piece.token_ids, piece.logprobs, strict=True)
            ]
            if has_top
            else None,
        )

    def _top(self, token_id: int, told: TokenLogprobs) -> dict[str, float]:
        """The chosen one is among them, also if it was none of the likeliest."""
        tops = zip(told.top_token_ids, told.top_logprobs, strict=True)
        by_text = {self._tokenizer.token_text(top_id): logprob for top_id, logprob in tops}
        return by_text | {self._tokenizer.token_text(token_id): told.logprob}


class _Place:
    """In characters, as the text is put out: a character begins with its first byte's token."""

    def __init__(self, tokenizer: Tokenizer, token_ids: Sequence[int]) -> None:
        self._token_bytes = tokenizer.token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._num_chars = 0
        for token_id in token_ids:
            self.advance(token_id)

    def advance(self, token_id: int) -> int:
        """How many characters stand before the token."""
        num_before = self._num_chars
        self._num_chars += len(self._decoder.decode(self._token_bytes[token_id]))
        return num_before
