"""One HTTP request as the facade sees it: from its arrival to the engine's final count."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

from replica.engine.messages import Delta, FinishReason, SamplingParams, Usage
from replica.errors import GenerationFailed, ReplicaError


@dataclass(frozen=True, slots=True)
class Work:
    """What the engine is asked to do.  It has been proven to fit."""

    prompt_token_ids: Sequence[int]
    params: SamplingParams
    cache_salt: str = ""
    priority: int = 0
    max_time_s: float | None = None
    resume_token_ids: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Piece:
    """What was generated since the last one.  Tokens may not have become text yet."""

    text: str
    token_ids: Sequence[int]


class LiveRequest:
    """Tokens arrive in ``push``; one reader takes them from ``pieces``.

    What the reader has not taken yet is joined: a slow client costs its own text and nothing else.
    """

    def __init__(self, request_id: str, arrived_monotonic_s: float) -> None:
        self.request_id = request_id
        self.arrived_monotonic_s = arrived_monotonic_s
        self.last_token_monotonic_s: float | None = None
        self.sequence_id: int | None = None  # None: the engine has not heard of it
        self.is_abort_wanted = False
        self.finish_reason: FinishReason | None = None
        self.usage = Usage()
        self.ended = asyncio.Event()
        self._texts: list[str] = []
        self._token_ids: list[int] = []
        self._failure: ReplicaError | None = None
        self._news = asyncio.Event()

    def push(self, delta: Delta) -> None:
        self._texts.append(delta.text)
        if delta.token_id is not None:
            self._token_ids.append(delta.token_id)
        if delta.finish_reason is not None:
            self.finish_reason = delta.finish_reason
            assert delta.usage is not None
            self.usage = delta.usage
            if delta.finish_reason is FinishReason.ERROR:
                self._failure = GenerationFailed("the model produced numbers that are not finite")
            self.ended.set()
        self._news.set()

    def fail(self, failure: ReplicaError) -> None:
        self._failure = failure
        self.ended.set()
        self._news.set()

    async def pieces(self) -> AsyncGenerator[Piece]:
        """Ends when the sequence has; then ``finish_reason`` and ``usage`` are final.

        Raises GenerationFailed or EngineDied.  Yields at least once if tokens were generated.
        """
        while True:
            await self._news.wait()
            self._news.clear()
            has_ended = self.ended.is_set()
            if self._failure is not None:
                raise self._failure
            texts, self._texts = self._texts, []
            token_ids, self._token_ids = self._token_ids, []
            if texts:
                yield Piece("".join(texts), token_ids)
            if has_ended:
                return
