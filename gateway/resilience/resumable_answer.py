"""What a client has of one streamed answer, so that another replica can go on behind it.

Our replicas tell the ids of the tokens in each event.  They are taken out on the way to the client,
and kept: whoever resumes is given exactly those whose events were sent, samples with the same seed
at the same positions, and holds back what was held back.  So the texts of all attempts are that of
one undisturbed answer, its stop strings and its halves of characters included.

It knows the shape in which our own replicas write their events (``replica.api.replies``) and reads
them by their bytes: no quote inside a JSON string is followed by what is searched for here.
"""

import re
from typing import Final

from contracts.replica_api import RESUME_TOKENS_FIELD, RETURN_TOKEN_IDS_FIELD
from contracts.usage import UsageSource
from gateway.errors import UpstreamError
from gateway.metering import Usage

_TOKEN_IDS: Final = b',"token_ids":['
_PROMPT: Final = re.compile(rb'(?:,"cached_prompt_tokens":(\d+))?,"prompt_token_ids":\[([\d,]*)\]')
_CHOICES: Final = b'"choices":['
_OPENS_CHAT: Final = b'"delta":{"role":'
_FINISH: Final = b'"finish_reason":"'
_GIVEN_UP: Final = b'"finish_reason":"abort"'
_NO_TEXT: Final = b'"delta":{"content":""},"finish_reason":null', b'"text":"","finish_reason":null'
_NO_LOGPROBS: Final = b'"logprobs":null'
_ANY_TEXT: Final = re.compile(rb'"(?:content|text|reasoning_content|reasoning|arguments)":"[^"]')
_SEED_DIGITS: Final = 15  # hexadecimal, so that it fits 63 bits
_MOST_BREAKS: Final = 8  # of one stream
_MOST_WITHOUT_PROGRESS: Final = 2  # in a row: then the request itself may be what kills


class ResumableAnswer:
    """One choice, streamed."""

    def __init__(self, request_id: str, *, has_seed: bool) -> None:
        """``has_seed``: the client's own.  Else all attempts share one that is made of the id."""
        self._members = b',"%b":true' % RETURN_TOKEN_IDS_FIELD.encode()
        if not has_seed:
            self._members += b',"seed":%d' % int(request_id[-_SEED_DIGITS:], 16)
        self._groups: list[bytes] = []  # "17,4": the ids of one event
        self.num_tokens = 0
        self._prompt_tokens: int | None = None  # None: its first event has not come
        self._cached_prompt_tokens: int | None = None  # of those, as the first attempt found them
        self._envelope: bytes | None = None  # the first event's members before its choices
        self._is_blind = False  # the client has text whose tokens nobody told
        self._is_resumed = False
        self._is_opened = False
        self._is_finished = False
        self._num_resumed = 0  # tokens that the running attempt was given
        self._repeated: bytes | None = None  # the id that it is to say again
        self._num_breaks = 0
        self._num_without_progress = 0
        self._num_at_break = 0

    # For the next replica

    def body(self, body: bytes) -> bytes:
        """The request as the next replica gets it."""
        self._num_resumed = self.num_tokens - (self._repeated is not None)
        if self._num_resumed == 0:
            return b"%b%b}" % (body[:-1], self._members)
        ids = b",".join(self._groups).split(b",", self._num_resumed)[: self._num_resumed]
        resumed = b",".join(ids)
        field = RESUME_TOKENS_FIELD.encode()
        return b'%b%b,"%b":[%b]}' % (body[:-1], self._members, field, resumed)

    def break_off(self) -> bool:
        """The attempt has ended before its end.  False: no other is worth it."""
        self._num_breaks += 1
        has_progress = self.num_tokens > self._num_at_break or self._num_breaks == 1
        self._num_without_progress = 0 if has_progress else self._num_without_progress + 1
        self._num_at_break = self.num_tokens
        self._is_resumed = self._envelope is not None
        self._repeated = None
        return (
            not self._is_blind
            and self._num_breaks <= _MOST_BREAKS
            and self._num_without_progress < _MOST_WITHOUT_PROGRESS
        )

    def repeat_last(self) -> bool:
        """The next attempt shall say the last token again, and how the answer ended with it.

        For an answer that had ended, but for its end.  False: there is none, or it has been tried.
        """
        if self._repeated is not None or not self._groups:
            return False
        self._repeated = self._groups[-1].rpartition(b",")[2]
        return True

    # For the client

    def take(self, event: bytes) -> bytes:
        """The event as it is sent to the client; empty: not at all.  Raises UpstreamError."""
        if self._prompt_tokens is None:
            event = self._without_prompt(event)
        start = event.find(_TOKEN_IDS)
        if start < 0:
            return self._without_tokens(event)
        end = event.index(b"]", start)
        ids = event[start + len(_TOKEN_IDS) : end]
        event = event[:start] + event[end + 1 :]
        if ids and self._repeated is not None:
            return self._again(ids)
        if ids:
            self._groups.append(ids)
            self.num_tokens += ids.count(b",") + 1
        has_text = _NO_TEXT[0] not in event and _NO_TEXT[1] not in event
        if not has_text and _NO_LOGPROBS in event:  # nor would there be one without ids
            return b""
        if self._is_resumed or self._envelope is None:
            return self._in_envelope(event)
        return event

    def usage_event(self, usage: Usage) -> bytes:
        """In place of a resumed replica's, which counts what it was given as its prompt."""
        return (
            b'data: %b%b],"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d,'
            b'"prompt_tokens_details":{"cached_tokens":%d}}}\n\n'
        ) % (
            self._envelope or b"{",
            _CHOICES,
            usage.prompt_tokens,
            usage.completion_tokens,
            usage.total_tokens,
            usage.cached_prompt_tokens,
        )

    @property
    def is_recounted(self) -> bool:
        """The running attempt goes on from another, and counts what it was given as its prompt."""
        return self._num_breaks > 0

    # For the bill

    def whole(self, usage: Usage) -> Usage:
        """Of the answer, from what the running attempt used: as if it had never moved."""
        if self._num_breaks == 0:
            return usage
        if usage.prompt_tokens < self._num_resumed:  # it had not begun
            return self.told(0)
        prompt_tokens, cached = usage.prompt_tokens - self._num_resumed, self._cached_prompt_tokens
        return Usage(
            prompt_tokens,
            min(usage.cached_prompt_tokens, prompt_tokens) if cached is None else cached,
            self._num_resumed + usage.completion_tokens,
            usage.source,
        )

    def told(self, estimated_prompt_tokens: int) -> Usage:
        """What the client has, by the ids in its events."""
        known = self._prompt_tokens
        prompt_tokens = estimated_prompt_tokens if known is None else known
        cached = self._cached_prompt_tokens
        return Usage(
            prompt_tokens, 0 if cached is None else cached, self.num_tokens, UsageSource.COUNTED
        )

    # Events

    def _without_prompt(self, event: bytes) -> bytes:
        told = _PROMPT.search(event)
        if told is None:
            return event
        cached, ids = told.groups()
        self._cached_prompt_tokens = None if cached is None else int(cached)
        self._prompt_tokens = ids.count(b",") + 1 if ids else 0
        return event[: told.start()] + event[told.end() :]

    def _without_tokens(self, event: bytes) -> bytes:
        if _GIVEN_UP in event:
            raise UpstreamError("The replica gave the answer up.")
        if _OPENS_CHAT in event:
            if self._is_opened:
                return b""
            self._is_opened = True
        elif _FINISH in event:
            if self._is_finished:
                return b""
            self._is_finished = True
        elif _ANY_TEXT.search(event) is not None:
            self._is_blind = True
        return self._in_envelope(event)

    def _again(self, ids: bytes) -> bytes:
        repeated, self._repeated = self._repeated, None
        if ids != repeated:
            raise UpstreamError("The replica goes on with another answer.")
        return b""

    def _in_envelope(self, event: bytes) -> bytes:
        """Under the first attempt's id and time."""
        if self._envelope is None:
            start = event.find(_CHOICES)
            if start >= 0 and event.startswith(b"data: "):
                self._envelope = event[6:start]
            return event
        if not self._is_resumed:
            return event
        start = event.find(_CHOICES)
        return event if start < 0 else b"data: %b%b" % (self._envelope, event[start:])
