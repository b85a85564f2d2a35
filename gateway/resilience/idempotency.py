"""``Idempotency-Key``: a request that is sent again is answered again, and charged once.

Kept are answers that came to their end as they should, for a while and within a bound; whatever
failed may be tried again under its key.  A client that leaves is expected back: its answer is made
to the end.  Of one process: see docs/decisions/0018-resilience.md.
"""

import asyncio
import hashlib
import re
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from contracts.names import TenantId
from contracts.usage import Outcome
from gateway.errors import AnswerNotKept, AnswerTimeout, IdempotencyMismatch, InvalidRequest
from gateway.exchange import Exchange
from gateway.resilience.shared_answer import SharedAnswer

REPLAYED: Final = b"idempotent-replayed: true\r\n"
Owner = tuple[TenantId, str]  # and its API key: another may not ask for the same
_At = tuple[Owner, bytes]
_MAX_REPLAYS: Final = 100  # of one answer: they count against no limit
_KEY = re.compile(rb"[\x21-\x7e]{1,255}")


@dataclass(frozen=True, slots=True)
class IdempotencyLimits:
    kept_s: float  # after the answer's end
    max_kept: int
    max_kept_bytes: int
    answer_timeout_s: float


class _Entry:
    """A key's request."""

    def __init__(self, digest: bytes) -> None:
        self.digest = digest
        self.answer: SharedAnswer | None = None  # None: it was too large to be kept
        self.ended_s: float | None = None  # None: it is being made
        self.num_bytes = 0
        self.num_replays = 0
        self.timer: asyncio.TimerHandle | None = None


class Idempotency:
    def __init__(self, limits: IdempotencyLimits, monotonic_s: Callable[[], float]) -> None:
        self._limits = limits
        self._monotonic_s = monotonic_s
        self._running: dict[_At, _Entry] = {}
        self._ended: OrderedDict[_At, _Entry] = OrderedDict()  # oldest first
        self._num_bytes = 0
        self.num_replays = 0

    def find(self, owner: Owner, key: bytes, exchange: Exchange) -> SharedAnswer | None:
        """The answer to the key's request, if there is one.

        Raises InvalidRequest, IdempotencyMismatch, AnswerNotKept.
        """
        if _KEY.fullmatch(key) is None:
            raise InvalidRequest("Idempotency-Key must hold 1 to 255 visible ASCII characters.")
        self._forget_old()
        entry = self._running.get((owner, key)) or self._ended.get((owner, key))
        if entry is None:
            return None
        if entry.digest != _digest(exchange):
            raise IdempotencyMismatch("The Idempotency-Key was sent with another body before.")
        if entry.answer is None or entry.answer.is_too_large:
            raise AnswerNotKept("The answer to this Idempotency-Key is too large to be repeated.")
        if entry.num_replays >= _MAX_REPLAYS:
            raise AnswerNotKept("The answer to this Idempotency-Key has been repeated too often.")
        entry.num_replays += 1
        self.num_replays += 1
        return entry.answer

    def begin(self, owner: Owner, key: bytes, exchange: Exchange) -> SharedAnswer:
        """An answer of which ``find`` knows from now on.  The caller has it made."""
        entry = _Entry(_digest(exchange))
        at = owner, key
        answer = SharedAnswer(exchange, partial(self._end, at), outlives_readers=True)
        entry.answer = answer
        self._running[at] = entry
        timeout_s = self._limits.answer_timeout_s
        error = AnswerTimeout(f"The answer was not complete after {timeout_s:g} seconds.")
        loop = asyncio.get_running_loop()
        entry.timer = loop.call_later(timeout_s, answer.interrupt, Outcome.CANCELLED, error)
        return answer

    def _end(self, at: _At, answer: SharedAnswer) -> None:
        entry = self._running.pop(at)
        if entry.timer is not None:
            entry.timer.cancel()
        if answer.is_too_large:
            entry.answer = None
        elif answer.recording is None or not answer.recording.is_good:
            return
        else:
            entry.num_bytes = answer.recording.num_bytes
        entry.ended_s = self._monotonic_s()
        self._ended[at] = entry
        self._num_bytes += entry.num_bytes
        self._forget_old()

    def _forget_old(self) -> None:
        oldest_s = self._monotonic_s() - self._limits.kept_s
        while self._ended:
            at, entry = next(iter(self._ended.items()))
            assert entry.ended_s is not None
            is_over = len(self._ended) > self._limits.max_kept
            if (
                entry.ended_s > oldest_s
                and not is_over
                and self._num_bytes <= self._limits.max_kept_bytes
            ):
                return
            del self._ended[at]
            self._num_bytes -= entry.num_bytes


def _digest(exchange: Exchange) -> bytes:
    return hashlib.blake2b(
        exchange.body, digest_size=16, person=exchange.head.operation.encode()[:16]
    ).digest()
