"""One HTTP request as the facade sees it: from its arrival to the engine's final count."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from dataclasses import dataclass

from replica.engine.messages import Delta, FinishReason, TokenLogprobs, Usage
from replica.errors import GenerationFailed, ReplicaError


@dataclass(frozen=True, slots=True)
class Piece:
    """What one choice generated since its last one.  Tokens may not have become text yet."""

    index: int  # of the choice
    text: str
    token_ids: Sequence[int]
    finish_reason: FinishReason | None  # None: there is more to come
    logprobs: Sequence[TokenLogprobs] = ()  # of each token, if they are wanted


def join(pieces: Sequence[Piece]) -> Piece:
    """All pieces of one choice, in order, as one."""
    return Piece(
        index=pieces[-1].index,
        text="".join(piece.text for piece in pieces),
        token_ids=[token_id for piece in pieces for token_id in piece.token_ids],
        finish_reason=pieces[-1].finish_reason,
        logprobs=[logprobs for piece in pieces for logprobs in piece.logprobs],
    )


class Choice:
    """One of the answers to a request: a sequence of the engine's.

    What the reader has not taken yet is joined: a slow client costs its own text and nothing else.
    """

    def __init__(self, request: "LiveRequest", index: int, sequence_id: int) -> None:
        self.request = request
        self.sequence_id = sequence_id
        self.last_token_monotonic_s: float | None = None
        self.finish_reason: FinishReason | None = None
        self.num_tokens = 0  # so far
        self.cached_prompt_tokens = 0  # known with its first token
        self.usage = Usage()
        self._index = index
        self._texts: list[str] = []
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprobs] = []

    def push(self, delta: Delta) -> None:
        self._texts.append(delta.text)
        self.num_tokens += delta.num_tokens
        if delta.cached_prompt_tokens is not None:
            self.cached_prompt_tokens = delta.cached_prompt_tokens
        if delta.token_id is not None:
            self._token_ids.append(delta.token_id)
        if delta.logprobs is not None:
            self._logprobs.append(delta.logprobs)
        if delta.finish_reason is not None:
            self.finish_reason = delta.finish_reason
            assert delta.usage is not None
            self.usage = delta.usage

    def take(self) -> Piece | None:
        """None: there is nothing new."""
        if not self._texts:
            return None
        piece = Piece(
            self._index,
            "".join(self._texts),
            self._token_ids,
            self.finish_reason,
            self._logprobs,
        )
        self._texts, self._token_ids, self._logprobs = [], [], []
        return piece


class LiveRequest:
    """Tokens arrive in ``push``; one reader takes them from ``pieces``."""

    def __init__(
        self, request_id: str, arrived_monotonic_s: float, *, is_abort_wanted: bool
    ) -> None:
        self.request_id = request_id
        self.arrived_monotonic_s = arrived_monotonic_s
        self.choices: Sequence[Choice] = ()  # empty: the engine has not heard of it
        self.is_abort_wanted = is_abort_wanted
        self.ended = asyncio.Event()
        self._on_end: OnEnd = ignore_end
        self._failure: ReplicaError | None = None
        self._news = asyncio.Event()

    @property
    def is_counted(self) -> bool:
        """Whether the engine has said what each choice consumed."""
        return all(choice.finish_reason is not None for choice in self.choices)

    @property
    def usage(self) -> Usage:
        """Of all choices; final when the request has ended."""
        return sum_usage(choice.usage for choice in self.choices)

    def begin(self, sequence_ids: Iterable[int], on_end: "OnEnd") -> None:
        """The engine is about to hear of it: a sequence for each choice, in their order."""
        assert not self.choices, "a request begins once"
        self.choices = [Choice(self, index, id_) for index, id_ in enumerate(sequence_ids)]
        self._on_end = on_end

    def push(self, choice: Choice, delta: Delta) -> None:
        choice.push(delta)
        if delta.finish_reason is FinishReason.ERROR:
            self._failure = GenerationFailed("the model produced numbers that are not finite")
        if delta.finish_reason is not None and self.is_counted:
            self._end()
        self._news.set()

    def fail(self, failure: ReplicaError) -> None:
        self._failure = failure
        self._end()
        self._news.set()

    def _end(self) -> None:
        if not self.ended.is_set():
            self.ended.set()
            self._on_end(self)

    async def pieces(self) -> AsyncGenerator[Piece]:
        """Ends when every choice has; then ``usage`` is final.

        Raises GenerationFailed or EngineDied.  The last piece of each choice has its finish reason.
        """
        num_unfinished = len(self.choices)
        while num_unfinished:
            await self._news.wait()
            self._news.clear()
            for choice in self.choices:
                if self._failure is not None:
                    raise self._failure
                piece = choice.take()
                if piece is None:
                    continue
                num_unfinished -= piece.finish_reason is not None
                yield piece


OnEnd = Callable[[LiveRequest], None]  # called once: its usage is final, or will never be known


def ignore_end(request: LiveRequest) -> None:
    """An OnEnd."""


def sum_usage(usages: Iterable[Usage]) -> Usage:
    prompt, cached, completion = 0, 0, 0
    for usage in usages:
        prompt += usage.prompt_tokens
        cached += usage.cached_prompt_tokens
        completion += usage.completion_tokens
    return Usage(prompt_tokens=prompt, cached_prompt_tokens=cached, completion_tokens=completion)
