"""One streamed answer as it comes: when its tokens arrived, how many the server counted.

Filled by the connection, read when it has ended.  The text itself is looked at only to see that
there is some, and never kept.
"""

from array import array
from enum import StrEnum
from typing import Final

import msgspec

from contracts.errors import UNDECODABLE

_DATA: Final = b"data:"
_DONE: Final = b"[DONE]"
_LONGEST_LINE_BYTES: Final = 1 << 20


class Outcome(StrEnum):
    COMPLETED = "completed"
    REFUSED = "refused"  # 429, or any answer that says when to come back
    ERROR = "error"  # another status
    BROKEN = "broken"  # no connection, or a stream that ended early, failed or was no stream
    TIMEOUT = "timeout"


class PromptDetails(msgspec.Struct, frozen=True):
    cached_tokens: int | None = None


class Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    prompt_tokens_details: PromptDetails | None = None

    @property
    def cached_tokens(self) -> int | None:
        return (
            None if self.prompt_tokens_details is None else self.prompt_tokens_details.cached_tokens
        )


class _Delta(msgspec.Struct, frozen=True):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: msgspec.Raw = msgspec.Raw()


class _Choice(msgspec.Struct, frozen=True):
    delta: _Delta = _Delta()

    @property
    def has_tokens(self) -> bool:
        delta = self.delta
        if delta.content or delta.reasoning_content or delta.reasoning:
            return True
        return bytes(delta.tool_calls) not in (b"", b"null", b"[]")


class _Chunk(msgspec.Struct, frozen=True):
    choices: tuple[_Choice, ...] = ()
    usage: Usage | None = None
    error: msgspec.Raw = msgspec.Raw()


_decode_chunk = msgspec.json.Decoder(_Chunk).decode


class Answer:
    """Times are readings of the run's clock.  A chunk is what came in one event: a token or few."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.retry_after_s: float | None = None
        self.usage: Usage | None = None
        self.num_chunks = 0
        self.first_token_s: float | None = None
        self.last_token_s: float | None = None
        self.ended_s: float | None = None
        self.gaps_s = array("d")  # between chunks
        self.is_timed_out = False
        self._is_done = False
        self._is_spoilt = False
        self._rest = b""

    @property
    def outcome(self) -> Outcome:
        if self.is_timed_out:
            return Outcome.TIMEOUT
        if self.status is None:
            return Outcome.BROKEN
        if self.status == 429 or (self.status != 200 and self.retry_after_s is not None):
            return Outcome.REFUSED
        if self.status != 200:
            return Outcome.ERROR
        is_whole = self._is_done and not self._is_spoilt and self.first_token_s is not None
        return Outcome.COMPLETED if is_whole else Outcome.BROKEN

    def add(self, body: bytes, now_s: float) -> None:
        """A piece of the body, cut anywhere."""
        if self.status != 200 or self._is_spoilt:
            return
        lines = (self._rest + body).split(b"\n")
        self._rest = lines.pop()
        self._is_spoilt = len(self._rest) > _LONGEST_LINE_BYTES
        for line in lines:
            if line.startswith(_DATA):
                self._add_event(line[len(_DATA) :].strip(), now_s)

    def _add_event(self, payload: bytes, now_s: float) -> None:
        if payload == _DONE:
            self._is_done = True
            return
        try:
            chunk = _decode_chunk(payload)
        except UNDECODABLE:
            self._is_spoilt = True
            return
        if chunk.usage is not None:
            self.usage = chunk.usage
        if bytes(chunk.error) not in (b"", b"null"):
            self._is_spoilt = True
        if any(choice.has_tokens for choice in chunk.choices):
            self._add_tokens(now_s)

    def _add_tokens(self, now_s: float) -> None:
        self.num_chunks += 1
        if self.last_token_s is None:
            self.first_token_s = now_s
        else:
            self.gaps_s.append(now_s - self.last_token_s)
        self.last_token_s = now_s
