"""Quotas in Valkey or Redis: one atomic script per decision, on the store's own clock.

Fails closed: without the store nobody is admitted.  A settlement is never lost while the process
lives: it waits for the store to come back, and being idempotent it may safely be sent twice.
"""

import asyncio
import hashlib
import logging
from collections import deque
from dataclasses import dataclass
from importlib import resources
from typing import Final

import hiredis

from contracts.names import (
    TenantId,
    quota_bucket_key,
    quota_reservations_key,
    quota_settled_key,
)
from contracts.policy import Limits
from gateway.admission.limiter import Budget, Refusal, Reservation, Verdict
from gateway.admission.resp import RespClient, first_word, pack, pack_arguments
from gateway.errors import QuotaRefused, QuotaUnanswered, QuotaUnavailable

logger = logging.getLogger(__name__)

RESERVATION_LIFETIME_MS: Final = 24 * 3600 * 1000  # the longest request plus the longest outage
_RETRY_PAUSE_S = 0.1
_RESERVE_PARTS = 10  # of the command: EVALSHA, sha, 2, keys, constants, and what varies
_SETTLE_PARTS = 12
_MAX_PREPARED = 10_000  # tenants whose commands are kept packed


class _Script:
    def __init__(self, name: str) -> None:
        folder = resources.files("gateway.admission") / "lua"
        self.text = (folder / "bucket.lua").read_text() + (folder / f"{name}.lua").read_text()
        # The protocol's name for a script, not a safeguard.
        sha = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()
        self.by_sha = pack_arguments("EVALSHA", sha)
        self.by_text = pack_arguments("EVAL", self.text)


def preload_commands() -> list[bytes]:
    """Makes a new connection's store know the scripts: one call instead of two for the first."""
    return [pack("SCRIPT", "LOAD", _Script(name).text) for name in ("reserve", "settle")]


@dataclass(frozen=True, slots=True)
class _Settlement:
    """One ``settle`` or ``release`` that the store has not confirmed yet."""

    constant: bytes
    varying: bytes
    done: asyncio.Future[None]


@dataclass(frozen=True, slots=True)
class _Commands:
    """What is the same in all commands of one tenant under the same limits, packed once."""

    limits: Limits
    reserve: bytes
    settle: bytes


class RedisLimiter:
    def __init__(self, client: RespClient) -> None:
        self._client = client
        self._reserve_script = _Script("reserve")
        self._settle_script = _Script("settle")
        self._prepared: dict[TenantId, _Commands] = {}
        self._open: set[asyncio.Future[None]] = set()
        self._unconfirmed: deque[_Settlement] = deque()  # were sent, and must be sent again
        self._last_refusal: str | None = None
        self._wake = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    @property
    def is_reachable(self) -> bool:
        return self._client.connected.is_set()

    async def reserve(self, reservation: Reservation) -> Verdict:
        """Raises QuotaUnavailable.  The reservation is held only if the verdict has no refusal."""
        asked = pack_arguments(reservation.reserved_tokens, reservation.reservation_id)
        constant = self._commands(reservation).reserve
        script = self._reserve_script
        try:
            reply = await self._client.call(_evalsha(script, constant, asked, _RESERVE_PARTS))
            if _is_unknown_script(reply):
                reply = await self._client.call(_eval(script, constant, asked, _RESERVE_PARTS))
        except (QuotaUnanswered, asyncio.CancelledError):
            self.release(reservation)  # it may have been made although no answer came
            raise
        return _verdict(self._checked(reply), reservation.limits)

    def settle(self, reservation: Reservation, actual_tokens: int) -> "asyncio.Future[None]":
        """Done when the store has confirmed.  Goes on in the background if nobody waits."""
        return self._enqueue(reservation, actual_tokens, is_settle=True)

    def release(self, reservation: Reservation) -> "asyncio.Future[None]":
        """As ``settle``, for an ask that led to no request: gives the request back, too."""
        return self._enqueue(reservation, 0, is_settle=False)

    async def run(self) -> None:
        """Sends again what was not confirmed; runs until cancelled."""
        while True:
            await self._wake.wait()
            await asyncio.sleep(_RETRY_PAUSE_S)
            await self._retry_unconfirmed()

    async def flush(self, timeout_s: float) -> int:
        """Waits for open settlements at shutdown; returns, and logs, how many stay unconfirmed."""
        if self._open:
            await asyncio.wait(self._open, timeout=timeout_s)
        if self._open:
            logger.error("reservations left unsettled", extra={"num_events": len(self._open)})
        return len(self._open)

    def _commands(self, reservation: Reservation) -> _Commands:
        tenant, limits = reservation.tenant_id, reservation.limits
        commands = self._prepared.get(tenant)
        if commands is None or commands.limits is not limits:
            if len(self._prepared) >= _MAX_PREPARED:
                self._prepared.clear()
            commands = self._prepared[tenant] = _pack_commands(tenant, limits)
        return commands

    # Settling

    def _enqueue(
        self, reservation: Reservation, actual_tokens: int, *, is_settle: bool
    ) -> "asyncio.Future[None]":
        constant, script = self._commands(reservation).settle, self._settle_script
        spent = pack_arguments(
            reservation.reservation_id,
            reservation.reserved_tokens,
            actual_tokens,
            1 if is_settle else 0,
        )
        settlement = _Settlement(constant, spent, self._loop.create_future())
        self._open.add(settlement.done)
        settlement.done.add_done_callback(self._open.discard)
        reply = self._client.call(_evalsha(script, constant, spent, _SETTLE_PARTS))
        reply.add_done_callback(lambda done: self._on_reply(settlement, done))
        return settlement.done

    def _on_reply(self, settlement: _Settlement, reply: "asyncio.Future[object]") -> None:
        failure = reply.exception()
        if failure is None and isinstance(reply.result(), int):
            if not settlement.done.done():
                settlement.done.set_result(None)
            return
        self._unconfirmed.append(settlement)
        self._wake.set()

    async def _retry_unconfirmed(self) -> None:
        """One at a time, until the store fails again or none is left."""
        while self._unconfirmed:
            settlement = self._unconfirmed[0]
            parts = settlement.constant, settlement.varying
            try:
                command = _eval(self._settle_script, *parts, _SETTLE_PARTS)
                self._checked(await self._client.call(command))
            except QuotaUnavailable:
                self._unconfirmed.rotate(-1)  # one that the store refuses must not block the others
                return
            self._unconfirmed.popleft()
            if not settlement.done.done():
                settlement.done.set_result(None)
        self._wake.clear()

    def _checked(self, reply: object) -> object:
        """Raises QuotaUnavailable for an error reply, and logs it once, not once per request."""
        refusal = first_word(reply) if isinstance(reply, hiredis.ReplyError) else None
        if refusal is not None and refusal != self._last_refusal:
            logger.error("quota store refused", extra={"reason": refusal})
        self._last_refusal = refusal
        if refusal is not None:
            raise QuotaRefused(refusal)
        return reply


def _pack_commands(tenant: TenantId, limits: Limits) -> _Commands:
    bucket, reservations = quota_bucket_key(tenant), quota_reservations_key(tenant)
    numbers = limits.tokens_per_minute, limits.requests_per_minute
    return _Commands(
        limits,
        pack_arguments(2, bucket, reservations, *numbers, RESERVATION_LIFETIME_MS),
        pack_arguments(3, bucket, reservations, quota_settled_key(tenant), *numbers),
    )


def _evalsha(script: _Script, constant: bytes, varying: bytes, num_parts: int) -> bytes:
    return b"*%d\r\n%b%b%b" % (num_parts, script.by_sha, constant, varying)


def _eval(script: _Script, constant: bytes, varying: bytes, num_parts: int) -> bytes:
    return b"*%d\r\n%b%b%b" % (num_parts, script.by_text, constant, varying)


def _is_unknown_script(reply: object) -> bool:
    return isinstance(reply, hiredis.ReplyError) and str(reply).startswith("NOSCRIPT")


def _verdict(reply: object, limits: Limits) -> Verdict:
    if not (isinstance(reply, list) and len(reply) == 7 and all(type(n) is int for n in reply)):
        raise QuotaUnavailable("The quota store answered something else.")
    is_admitted, limit, retry_after_ms, tokens, requests, tokens_ms, requests_ms = reply
    budget = Budget(
        tokens_limit=limits.tokens_per_minute,
        tokens_remaining=tokens,
        tokens_reset_ms=tokens_ms,
        requests_limit=limits.requests_per_minute,
        requests_remaining=requests,
        requests_reset_ms=requests_ms,
    )
    if is_admitted:
        return Verdict(budget, None)
    return Verdict(budget, Refusal("tokens" if limit == 1 else "requests", retry_after_ms))
