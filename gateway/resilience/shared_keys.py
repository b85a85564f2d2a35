"""Idempotency keys of all gateways that share a store: who answers now, and what the answer was.

Whoever claims a key first makes its answer; the others wait for that, or for the claim to end.  It
ends by itself where its holder is gone.  A store that is away is the caller's to live without.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from contracts.errors import UNDECODABLE
from contracts.idempotency import KeyAnswer, KeyClaim, KeyRecord
from gateway.admission.resp import RespClient, error_text, pack
from gateway.completion import Completion
from gateway.errors import AnswerNotKept, Interrupted, QuotaUnavailable
from gateway.exchange import Exchange
from gateway.resilience.shared_answer import Recording

logger = logging.getLogger(__name__)

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(KeyClaim | KeyAnswer).decode
# Only what is still claimed by the same, or by nobody any more: the store may have lost it.
_PUT: Final = (
    "local now=redis.call('GET',KEYS[1]) "
    "return (now==ARGV[1] or not now) and redis.call('SET',KEYS[1],ARGV[2],'PX',ARGV[3])"
)
_DROP: Final = "return redis.call('GET',KEYS[1])==ARGV[1] and redis.call('DEL',KEYS[1])"


@dataclass(frozen=True, slots=True)
class SharedKeyLimits:
    lease_s: float  # of a claim that nobody renews
    kept_s: float  # after the answer's end
    max_answer_bytes: int


@dataclass(frozen=True, slots=True)
class Standing:
    """What the store holds under a key, and for how long."""

    record: KeyRecord
    left_s: float


class SharedKeys:
    def __init__(
        self, store: RespClient, limits: SharedKeyLimits, new_holder: Callable[[], str]
    ) -> None:
        self._store = store
        self.limits = limits
        self._new_holder = new_holder
        self.num_lost = 0  # claims of ours, to others, whose answers may be made beside ours

    def new_claim(self, body_digest: bytes) -> KeyClaim:
        return KeyClaim(body_digest=body_digest, holder=self._new_holder())

    async def put(self, name: str, claim: KeyClaim, exchange: Exchange) -> Standing:
        """What stands there then: the claim, if there was nothing.

        Raises QuotaUnavailable (as the client calls it of any store), Interrupted.
        """
        while True:
            lease_ms = int(self.limits.lease_s * 1000)
            put = self._store.call(pack("SET", name, _encode(claim), "NX", "PX", lease_ms))
            got = self._store.call(pack("GET", name))
            left = self._store.call(pack("PTTL", name))
            try:
                refusal = error_text(await exchange.watch(put))
                found = await exchange.watch(got)
                left_ms = await exchange.watch(left)
            except (Interrupted, asyncio.CancelledError):
                self.drop(name, claim)
                raise
            if refusal is not None or error_text(found) is not None:
                raise QuotaUnavailable("The store of idempotency keys refuses.")
            if isinstance(found, bytes):
                left_s = left_ms / 1000 if isinstance(left_ms, int) else 0.0
                return Standing(_record(found), max(0.0, left_s))

    def drop(self, name: str, claim: KeyClaim) -> None:
        """If it stands there."""
        self._store.call(pack("EVAL", _DROP, 1, name, _encode(claim)))

    def lease(self, name: str, claim: KeyClaim) -> "KeyLease":
        return KeyLease(self._store, self.limits, name, claim, self._note_lost)

    def _note_lost(self) -> None:
        self.num_lost += 1
        logger.warning("an idempotency key's claim was lost to another gateway")


class KeyLease:
    """A claim of ours: renewed until ``keep`` or ``drop``, of which one comes once.

    What the store says to it changes nothing here.  Lost to another, whose answer may be made
    beside ours, as after a pause of this process, it is told once.
    """

    _is_lost = False

    def __init__(
        self,
        store: RespClient,
        limits: SharedKeyLimits,
        name: str,
        claim: KeyClaim,
        note_lost: Callable[[], None],
    ) -> None:
        self._note_lost = note_lost
        self._store = store
        self._limits = limits
        self._name = name
        self._claim = claim
        self._encoded = _encode(claim)
        self._renew_soon()

    def keep(self, recording: Recording | None) -> None:
        """``None``: it is too large."""
        digest = self._claim.body_digest
        if recording is None or recording.num_bytes > self._limits.max_answer_bytes:
            answer = KeyAnswer(body_digest=digest, is_stream=False, headers=b"", parts=None)
        else:
            answer = KeyAnswer(
                body_digest=digest,
                is_stream=recording.is_stream,
                headers=recording.headers,
                parts=tuple(recording.parts),
            )
        self._timer.cancel()
        self._put(_encode(answer), max(1, int(self._limits.kept_s * 1000)))

    def drop(self) -> None:
        """Whoever asks again may make it."""
        self._timer.cancel()
        self._run(_DROP)

    def _renew_soon(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._limits.lease_s / 3, self._renew)

    def _renew(self) -> None:
        self._put(self._encoded, int(self._limits.lease_s * 1000))
        self._renew_soon()

    def _put(self, record: bytes, kept_ms: int) -> None:
        reply = self._run(_PUT, record, kept_ms)

        def look() -> None:
            if reply.exception() is None and reply.result() is None and not self._is_lost:
                self._is_lost = True
                self._note_lost()

        reply.then(look)

    def _run(self, script: str, *arguments: bytes | int) -> Completion[object]:
        return self._store.call(pack("EVAL", script, 1, self._name, self._encoded, *arguments))


def recording_of(answer: KeyAnswer) -> Recording:
    """Of one that is kept."""
    assert answer.parts is not None
    return Recording(200, answer.headers, answer.parts, answer.is_stream)


def too_large() -> AnswerNotKept:
    return AnswerNotKept("The answer to this Idempotency-Key is too large to be repeated.")


def _record(found: bytes) -> KeyRecord:
    try:
        return _decode(found)
    except UNDECODABLE as exc:
        raise QuotaUnavailable("The store of idempotency keys holds something else.") from exc
