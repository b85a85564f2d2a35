"""``Idempotency-Key``: a request that is sent again is answered again, and charged once.

Kept are answers that came to their end as they should, for a while and within a bound; whatever
failed may be tried again under its key.  A client that leaves is expected back: its answer is made
to the end.  With a store, keys hold in all gateways that share it; without it, or while it is away,
in each process alone: see docs/decisions/0018-resilience.md.
"""

import asyncio
import hashlib
import re
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from contracts.idempotency import KeyAnswer, KeyClaim
from contracts.names import TenantId, idempotency_record
from contracts.usage import Outcome
from gateway.completion import Broadcast
from gateway.errors import (
    AnswerNotKept,
    AnswerTimeout,
    IdempotencyMismatch,
    InvalidRequest,
    QuotaUnavailable,
)
from gateway.exchange import Exchange
from gateway.resilience.pause import pause
from gateway.resilience.shared_answer import Recording, SharedAnswer
from gateway.resilience.shared_keys import KeyLease, SharedKeys, Standing, recording_of, too_large

REPLAYED: Final = b"idempotent-replayed: true\r\n"
Owner = tuple[TenantId, str]  # and its API key: another may not ask for the same
_At = tuple[Owner, bytes]
_MAX_REPLAYS: Final = 100  # of one answer: they count against no limit
_LOOK_S: Final = 0.2  # for an answer that another gateway makes
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
        # Another gateway's is there as a whole.  None: it was too large to be kept.
        self.answer: SharedAnswer | Recording | None = None
        self.ended_s: float | None = None  # None: it is being made
        self.num_bytes = 0
        self.num_replays = 0
        self.timer: asyncio.TimerHandle | None = None
        self.lease: KeyLease | None = None  # None: nobody else knows of it


class Idempotency:
    def __init__(
        self,
        limits: IdempotencyLimits,
        monotonic_s: Callable[[], float],
        shared: SharedKeys | None = None,
    ) -> None:
        """``shared``: with other gateways."""
        self._limits = limits
        self._shared = shared
        self._monotonic_s = monotonic_s
        self._running: dict[_At, _Entry] = {}
        self._ended: OrderedDict[_At, _Entry] = OrderedDict()  # ours: oldest first
        self._num_bytes = 0
        # Of what the store holds, for all who ask for it: by digest, too, as others are refused.
        self._looks: dict[tuple[_At, bytes], Broadcast[None]] = {}
        self.num_replays = 0
        self.num_unshared = 0  # begun while the store was away

    @property
    def num_lost(self) -> int:
        """Keys of ours that another gateway has taken for its own."""
        return 0 if self._shared is None else self._shared.num_lost

    async def answer(
        self, owner: Owner, key: bytes, exchange: Exchange
    ) -> SharedAnswer | Recording:
        """To the key's request: there, or being made, or unread, and then the caller has it made.

        What another gateway makes is waited for, for as long as that lives: its client would have
        to ask again otherwise, and most give up after a few times.
        Raises InvalidRequest, IdempotencyMismatch, AnswerNotKept, Interrupted.
        """
        if _KEY.fullmatch(key) is None:
            raise InvalidRequest("Idempotency-Key must hold 1 to 255 visible ASCII characters.")
        digest = digest_of(exchange)
        at = owner, key
        while True:
            known = self.find(owner, key, digest)
            if known is not None:
                return known
            look = self._looks.get((at, digest))
            if look is None:
                return await self._look(at, digest, exchange)
            await exchange.watch(look.waiting())

    def find(self, owner: Owner, key: bytes, digest: bytes) -> SharedAnswer | Recording | None:
        """What this process knows.  Raises IdempotencyMismatch, AnswerNotKept."""
        self._forget_old()
        entry = self._known((owner, key))
        if entry is None:
            return None
        _check(entry.digest, digest)
        answer = entry.answer
        if answer is None or (isinstance(answer, SharedAnswer) and answer.is_too_large):
            raise too_large()
        if entry.num_replays >= _MAX_REPLAYS:
            raise AnswerNotKept("The answer to this Idempotency-Key has been repeated too often.")
        entry.num_replays += 1
        self.num_replays += 1
        return answer

    def begin(
        self,
        owner: Owner,
        key: bytes,
        digest: bytes,
        exchange: Exchange,
        lease: KeyLease | None = None,
    ) -> SharedAnswer:
        """An answer of which ``find`` knows from now on.  The caller has it made."""
        entry = _Entry(digest)
        entry.lease = lease
        at = owner, key
        answer = SharedAnswer(exchange, partial(self._end, at), outlives_readers=True)
        entry.answer = answer
        self._running[at] = entry
        timeout_s = self._limits.answer_timeout_s
        error = AnswerTimeout(f"The answer was not complete after {timeout_s:g} seconds.")
        loop = asyncio.get_running_loop()
        entry.timer = loop.call_later(timeout_s, answer.interrupt, Outcome.CANCELLED, error)
        return answer

    async def _look(self, at: _At, digest: bytes, exchange: Exchange) -> SharedAnswer | Recording:
        """Ours to make, or made by another: once that is known, or this process makes it."""
        self._looks[at, digest] = look = Broadcast[None]()
        try:
            found = await self._claimed(at, digest, exchange)
            while found is None:
                await exchange.watch(pause(_LOOK_S))
                found = self.find(*at, digest) or await self._claimed(at, digest, exchange)
            return found
        finally:
            del self._looks[at, digest]
            asyncio.get_running_loop().call_soon(look.resolve, None)  # behind whoever has it made

    async def _claimed(
        self, at: _At, digest: bytes, exchange: Exchange
    ) -> SharedAnswer | Recording | None:
        """Ours to make, or made by another; ``None``: being made by another."""
        shared = self._shared
        if shared is None:
            return self.begin(*at, digest, exchange)
        name, claim = _name(*at), shared.new_claim(digest)
        standing: Standing | None
        try:
            standing = await shared.put(name, claim, exchange)
        except QuotaUnavailable:  # as the client of all stores calls it
            standing = None
        if standing is None or standing.record == claim:
            if self._known(at) is not None:  # under another body, meanwhile
                shared.drop(name, claim)
                return self.find(*at, digest)
            if standing is None:
                self.num_unshared += 1
            # Unshared, too: the claim may stand there all the same, or does once it is renewed.
            return self.begin(*at, digest, exchange, shared.lease(name, claim))
        record = standing.record
        _check(record.body_digest, digest)
        return None if isinstance(record, KeyClaim) else self._take(at, record, standing.left_s)

    def _take(self, at: _At, record: KeyAnswer, left_s: float) -> Recording:
        """What another gateway has made is repeated, and counted, as if it was made here.

        ``left_s``: for so long it is kept.
        """
        entry = _Entry(record.body_digest)
        ended_s = self._monotonic_s() + left_s - self._limits.kept_s
        if record.parts is None:
            self._keep(at, entry, ended_s)
            raise too_large()
        entry.answer = recording = recording_of(record)
        entry.num_bytes, entry.num_replays = recording.num_bytes, 1
        self._keep(at, entry, ended_s)
        self.num_replays += 1
        return recording

    def _end(self, at: _At, answer: SharedAnswer) -> None:
        entry = self._running.pop(at)
        if entry.timer is not None:
            entry.timer.cancel()
        if entry.lease is not None:
            _tell(entry.lease, answer)
        if answer.is_too_large:
            entry.answer = None
        elif answer.recording is None or not answer.recording.is_good:
            return
        else:
            entry.num_bytes = answer.recording.num_bytes
        self._keep(at, entry, self._monotonic_s())

    def _keep(self, at: _At, entry: _Entry, ended_s: float) -> None:
        before = self._ended.pop(at, None)
        if before is not None:
            self._num_bytes -= before.num_bytes
        entry.ended_s = ended_s
        self._ended[at] = entry
        self._num_bytes += entry.num_bytes
        self._forget_old()

    def _known(self, at: _At) -> _Entry | None:
        """Another gateway's answer may be over behind others that are not."""
        entry = self._running.get(at) or self._ended.get(at)
        if entry is None or entry.ended_s is None or entry.ended_s > self._oldest_s():
            return entry
        return None

    def _oldest_s(self) -> float:
        return self._monotonic_s() - self._limits.kept_s

    def _forget_old(self) -> None:
        oldest_s = self._oldest_s()
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


def digest_of(exchange: Exchange) -> bytes:
    """Of a request as it came."""
    return hashlib.blake2b(
        exchange.body, digest_size=16, person=exchange.head.operation.encode()[:16]
    ).digest()


def _check(known: bytes, digest: bytes) -> None:
    if known != digest:
        raise IdempotencyMismatch("The Idempotency-Key was sent with another body before.")


def _name(owner: Owner, key: bytes) -> str:
    tenant, key_id = owner
    digest = hashlib.blake2b(b"%d %b" % (len(key_id), key_id.encode() + key), digest_size=24)
    return idempotency_record(tenant, digest.hexdigest())


def _tell(lease: KeyLease, answer: SharedAnswer) -> None:
    if answer.is_too_large:
        lease.keep(None)
    elif answer.recording is None or not answer.recording.is_good:
        lease.drop()
    else:
        lease.keep(answer.recording)
