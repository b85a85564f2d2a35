"""Answers of the OpenAI API, whole and in chunks."""

from typing import Protocol

import msgspec

from replica.engine.messages import FinishReason, Usage


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


class _ChatChoice(msgspec.Struct, frozen=True, kw_only=True):
    message: _ChatMessage
    finish_reason: str
    index: int = 0
    logprobs: None = None


class _ChatDelta(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    role: str | None = None
    content: str | None = None


class _ChatChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    delta: _ChatDelta
    finish_reason: str | None = None
    index: int = 0
    logprobs: None = None


class _TextChoice(msgspec.Struct, frozen=True, kw_only=True):
    text: str
    finish_reason: str | None = None
    index: int = 0
    logprobs: None = None


class _Envelope(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str
    created: int
    model: str
    choices: tuple[_ChatChoice | _ChatChunkChoice | _TextChoice, ...]
    usage: UsageBody | msgspec.UnsetType | None = msgspec.UNSET


class Replies(Protocol):
    """One request's answers, encoded as JSON."""

    def whole(self, text: str, reason: FinishReason, usage: Usage) -> bytes: ...

    def opening(self) -> bytes | None:
        """The chunk before any text, if there is one."""
        ...

    def text(self, text: str) -> bytes: ...

    def finish(self, reason: FinishReason) -> bytes: ...

    def usage(self, usage: Usage) -> bytes:
        """The chunk that holds nothing else."""
        ...


class _Encoder:
    """The envelope every answer of one request stands in."""

    def __init__(self, *, id_: str, model: str, created: int, has_usage: bool) -> None:
        self._id = id_
        self._model = model
        self._created = created
        self._usage: msgspec.UnsetType | None = None if has_usage else msgspec.UNSET

    def encode(
        self,
        object_: str,
        *choices: _ChatChoice | _ChatChunkChoice | _TextChoice,
        usage: Usage | None = None,
    ) -> bytes:
        return msgspec.json.encode(
            _Envelope(
                id=self._id,
                object=object_,
                created=self._created,
                model=self._model,
                choices=choices,
                usage=self._usage if usage is None else _usage_body(usage),
            )
        )


class ChatReplies:
    """Replies of ``/v1/chat/completions``."""

    def __init__(self, *, id_: str, model: str, created: int, has_usage: bool) -> None:
        self._encoder = _Encoder(
            id_=f"chatcmpl-{id_}", model=model, created=created, has_usage=has_usage
        )

    def whole(self, text: str, reason: FinishReason, usage: Usage) -> bytes:
        choice = _ChatChoice(message=_ChatMessage("assistant", text), finish_reason=reason)
        return self._encoder.encode("chat.completion", choice, usage=usage)

    def opening(self) -> bytes | None:
        return self._chunk(_ChatChunkChoice(delta=_ChatDelta(role="assistant", content="")))

    def text(self, text: str) -> bytes:
        return self._chunk(_ChatChunkChoice(delta=_ChatDelta(content=text)))

    def finish(self, reason: FinishReason) -> bytes:
        return self._chunk(_ChatChunkChoice(delta=_ChatDelta(), finish_reason=reason))

    def usage(self, usage: Usage) -> bytes:
        return self._encoder.encode("chat.completion.chunk", usage=usage)

    def _chunk(self, choice: _ChatChunkChoice) -> bytes:
        return self._encoder.encode("chat.completion.chunk", choice)


class CompletionReplies:
    """Replies of ``/v1/completions``: whole and chunk have one shape."""

    def __init__(self, *, id_: str, model: str, created: int, has_usage: bool) -> None:
        self._encoder = _Encoder(
            id_=f"cmpl-{id_}", model=model, created=created, has_usage=has_usage
        )

    def whole(self, text: str, reason: FinishReason, usage: Usage) -> bytes:
        choice = _TextChoice(text=text, finish_reason=reason)
        return self._encoder.encode("text_completion", choice, usage=usage)

    def opening(self) -> bytes | None:
        return None

    def text(self, text: str) -> bytes:
        return self._encoder.encode("text_completion", _TextChoice(text=text))

    def finish(self, reason: FinishReason) -> bytes:
        return self._encoder.encode("text_completion", _TextChoice(text="", finish_reason=reason))

    def usage(self, usage: Usage) -> bytes:
        return self._encoder.encode("text_completion", usage=usage)


def _usage_body(usage: Usage) -> UsageBody:
    return UsageBody(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
        prompt_tokens_details=_PromptDetails(usage.cached_prompt_tokens),
    )
