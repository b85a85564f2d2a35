"""Answers of the OpenAI API, whole and in chunks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from replica.api.logprobs import ChatLogprobs, Logprobs, TextLogprobs
from replica.engine.live_request import Piece
from replica.engine.messages import FinishReason, Usage
from replica.model.tokenizer import Tokenizer


class _PromptDetails(msgspec.Struct, frozen=True):
    cached_tokens: int


class UsageBody(msgspec.Struct, frozen=True, kw_only=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: _PromptDetails


class _ChatMessage(msgspec.Struct, frozen=True):
    role: str
    content: str


_TokenIds = Sequence[int] | msgspec.UnsetType  # where vLLM puts them, when they are asked for
_Cached = int | msgspec.UnsetType  # of the prompt, before its ids in a chunk


class _Choice(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    logprobs: Logprobs | None = None
    token_ids: _TokenIds = msgspec.UNSET


class _ChatChoice(_Choice, frozen=True, kw_only=True):
    message: _ChatMessage
    finish_reason: str | None


class _ChatDelta(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    role: str | None = None
    content: str | None = None


class _ChatChunkChoice(_Choice, frozen=True, kw_only=True):
    delta: _ChatDelta
    finish_reason: str | None = None


class _TextChoice(_Choice, frozen=True, kw_only=True):
    text: str
    finish_reason: str | None = None
    cached_prompt_tokens: _Cached = msgspec.UNSET
    prompt_token_ids: _TokenIds = msgspec.UNSET


class _Envelope(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str
    created: int
    model: str
    choices: tuple[_ChatChoice | _ChatChunkChoice | _TextChoice, ...]
    usage: UsageBody | msgspec.UnsetType | None = msgspec.UNSET
    cached_prompt_tokens: _Cached = msgspec.UNSET
    prompt_token_ids: _TokenIds = msgspec.UNSET


class Replies(Protocol):
    """One request's answers, encoded as JSON."""

    def whole(self, pieces: Sequence[Piece], usage: Usage) -> bytes:
        """One piece per choice: all of it."""
        ...

    def opening(self, index: int, cached_prompt_tokens: int) -> bytes | None:
        """The chunk before any text of a choice, if there is one."""
        ...

    def piece(self, piece: Piece) -> bytes | None:
        """None: there is nothing in it that was asked for."""
        ...

    def finish(self, index: int, reason: FinishReason) -> bytes: ...

    def usage(self, usage: Usage) -> bytes:
        """The chunk that holds nothing else."""
        ...


@dataclass(frozen=True, slots=True)
class ReplyOptions:
    """What is the same in all answers of one request."""

    request_id: str
    model: str
    created: int  # Unix time, seconds
    has_usage: bool
    prompt_token_ids: Sequence[int] | None  # None: no token ids are wanted
    logprobs_tokenizer: Tokenizer | None = None  # None: no logprobs are wanted
    resumed_token_ids: Sequence[int] = ()


class _Encoder:
    """The envelope every answer of one request stands in."""

    def __init__(self, id_: str, options: ReplyOptions) -> None:
        self._id = id_
        self._options = options
        self._usage: msgspec.UnsetType | None = None if options.has_usage else msgspec.UNSET

    @property
    def has_token_ids(self) -> bool:
        return self._options.prompt_token_ids is not None

    @property
    def prompt_token_ids(self) -> _TokenIds:
        wanted = self._options.prompt_token_ids
        return msgspec.UNSET if wanted is None else wanted

    def token_ids(self, piece: Piece) -> _TokenIds:
        return piece.token_ids if self.has_token_ids else msgspec.UNSET

    def is_empty(self, piece: Piece) -> bool:
        is_told = self.has_token_ids or bool(piece.logprobs)
        return not piece.text and not (is_told and piece.token_ids)

    def encode(
        self,
        object_: str,
        *choices: _ChatChoice | _ChatChunkChoice | _TextChoice,
        usage: Usage | None = None,
        cached_prompt_tokens: _Cached = msgspec.UNSET,
        prompt_token_ids: _TokenIds = msgspec.UNSET,
    ) -> bytes:
        return msgspec.json.encode(
            _Envelope(
                id=self._id,
                object=object_,
                created=self._options.created,
                model=self._options.model,
                choices=choices,
                usage=self._usage if usage is None else _usage_body(usage),
                cached_prompt_tokens=cached_prompt_tokens,
                prompt_token_ids=prompt_token_ids,
            )
        )


class ChatReplies:
    """Replies of ``/v1/chat/completions``."""

    def __init__(self, options: ReplyOptions) -> None:
        self._encoder = _Encoder(f"chatcmpl-{options.request_id}", options)
        tokenizer = options.logprobs_tokenizer
        self._logprobs = None if tokenizer is None else ChatLogprobs(tokenizer)

    def whole(self, pieces: Sequence[Piece], usage: Usage) -> bytes:
        choices = [
            _ChatChoice(
                index=piece.index,
                logprobs=self._logprobs_of(piece),
                message=_ChatMessage("assistant", piece.text),
                finish_reason=piece.finish_reason,
                token_ids=self._encoder.token_ids(piece),
            )
            for piece in pieces
        ]
        return self._encoder.encode(
            "chat.completion",
            *choices,
            usage=usage,
            prompt_token_ids=self._encoder.prompt_token_ids,
        )

    def opening(self, index: int, cached_prompt_tokens: int) -> bytes | None:
        delta = _ChatDelta(role="assistant", content="")
        has_ids = self._encoder.has_token_ids
        return self._encoder.encode(
            "chat.completion.chunk",
            _ChatChunkChoice(index=index, delta=delta),
            cached_prompt_tokens=cached_prompt_tokens if has_ids else msgspec.UNSET,
            prompt_token_ids=self._encoder.prompt_token_ids,
        )

    def piece(self, piece: Piece) -> bytes | None:
        if self._encoder.is_empty(piece):
            return None
        return self._chunk(
            _ChatChunkChoice(
                index=piece.index,
                logprobs=self._logprobs_of(piece),
                delta=_ChatDelta(content=piece.text),
                token_ids=self._encoder.token_ids(piece),
            )
        )

    def finish(self, index: int, reason: FinishReason) -> bytes:
        choice = _ChatChunkChoice(index=index, delta=_ChatDelta(), finish_reason=reason)
        return self._chunk(choice)

    def usage(self, usage: Usage) -> bytes:
        return self._encoder.encode("chat.completion.chunk", usage=usage)

    def _chunk(self, choice: _ChatChunkChoice) -> bytes:
        return self._encoder.encode("chat.completion.chunk", choice)

    def _logprobs_of(self, piece: Piece) -> Logprobs | None:
        return None if self._logprobs is None else self._logprobs.of(piece)


class CompletionReplies:
    """Replies of ``/v1/completions``: whole and chunk have one shape."""

    def __init__(self, options: ReplyOptions) -> None:
        self._encoder = _Encoder(f"cmpl-{options.request_id}", options)
        tokenizer, resumed = options.logprobs_tokenizer, options.resumed_token_ids
        self._logprobs = None if tokenizer is None else TextLogprobs(tokenizer, resumed)

    def whole(self, pieces: Sequence[Piece], usage: Usage) -> bytes:
        choices = [
            _TextChoice(
                index=piece.index,
                logprobs=self._logprobs_of(piece),
                text=piece.text,
                finish_reason=piece.finish_reason,
                token_ids=self._encoder.token_ids(piece),
                prompt_token_ids=self._encoder.prompt_token_ids,
            )
            for piece in pieces
        ]
        return self._encoder.encode("text_completion", *choices, usage=usage)

    def opening(self, index: int, cached_prompt_tokens: int) -> bytes | None:
        if not self._encoder.has_token_ids:
            return None
        choice = _TextChoice(
            index=index,
            text="",
            token_ids=(),
            cached_prompt_tokens=cached_prompt_tokens,
            prompt_token_ids=self._encoder.prompt_token_ids,
        )
        return self._encoder.encode("text_completion", choice)

    def piece(self, piece: Piece) -> bytes | None:
        if self._encoder.is_empty(piece):
            return None
        choice = _TextChoice(
            index=piece.index,
            logprobs=self._logprobs_of(piece),
            text=piece.text,
            token_ids=self._encoder.token_ids(piece),
        )
        return self._encoder.encode("text_completion", choice)

    def finish(self, index: int, reason: FinishReason) -> bytes:
        choice = _TextChoice(index=index, text="", finish_reason=reason)
        return self._encoder.encode("text_completion", choice)

    def usage(self, usage: Usage) -> bytes:
        return self._encoder.encode("text_completion", usage=usage)

    def _logprobs_of(self, piece: Piece) -> Logprobs | None:
        return None if self._logprobs is None else self._logprobs.of(piece)


def _usage_body(usage: Usage) -> UsageBody:
    return UsageBody(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
        prompt_tokens_details=_PromptDetails(usage.cached_prompt_tokens),
    )
