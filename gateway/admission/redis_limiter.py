"""Quotas in Valkey or Redis: one atomic script per decision, on the store's own clock.

Fails closed: without the store nobody is admitted.  A settlement is never lost while the process
lives: it waits for the store to come back, and being idempotent it may safely be sent twice.
"""

import asyncio
import contextlib
import hashlib
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Final

import hiredis
import msgspec

from contracts.names import (
    TenantId,
    quota_bucket_key,
    quota_reservations_key,
    quota_settled_key,
)
from contracts.policy import Limits
from gateway.admission.limiter import Budget, Refusal, Reservation, Verdict
from gateway.admission.resp import RespClient, first_word, pack, pack_arguments
from gateway.completion import Completion
from gateway.errors import QuotaRefused, QuotaUnanswered, QuotaUnavailable

logger = logging.getLogger(__name__)

RESERVATION_LIFETIME_MS: Final = 24 * 3600 * 1000  # the longest request plus the longest outage
_RETRY_PAUSE_S = 0.1
_RESERVE_PARTS = 10  # of the command: EVALSHA, sha, 2, keys, constants, and what varies
_SETTLE_PARTS = 8  # without the settlements
_PARTS_PER_SETTLEMENT = 4
_SETTLE, _RELEASE = pack_arguments(1), pack_arguments(0)
_SEVEN_NUMBERS = [int] * 7  # what reserve.lua returns
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


class _Settlement(msgspec.Struct, frozen=True):
    """One ``settle`` or ``release`` that the store has not confirmed yet."""

    commands: "_Commands"
    spent: bytes  # its part of the command, packed
    is_confirmed: Completion[bool]


@dataclass(slots=True)
class _Commands:
    """What is the same in all commands of one tenant under the same limits, packed once."""

    limits: Limits
    reserve: bytes
    settle: bytes
    joining: list[_Settlement]  # until the next write to the store


class RedisLimiter:
    def __init__(self, client: RespClient) -> None:
        self._client = client
        self._reserve_script = _Script("reserve")
        self._settle_script = _Script("settle")
        self._prepared: dict[TenantId, _Commands] = {}
        self._joining: list[_Commands] = []  # those with settlements to send
        self._num_open = 0
        self._all_closed = asyncio.Event()
        self._all_closed.set()
        self._unconfirmed: deque[_Settlement] = deque()  # were sent, and must be sent again
        self._last_refusal: str | None = None
        self._wake = asyncio.Event()

    @property
    def is_reachable(self) -> bool:
        return self._client.connected.is_set()

    async def reserve(self, reservation: Reservation) -> Verdict:
        """Raises QuotaUnavailable.  The reservation is held only if the verdict has no refusal."""
        asked = _pack_number(reservation.reserved_tokens) + _pack_id(reservation.reservation_id)
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

    def settle(self, reservation: Reservation, actual_tokens: int) -> Completion[bool]:
        """True once the store has confirmed; False if it did not at once.

        Then it goes on in the background, whether or not somebody waits.
        """
        return self._enqueue(reservation, actual_tokens, is_settle=True)

    def release(self, reservation: Reservation) -> Completion[bool]:
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
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._all_closed.wait()
        if self._num_open:
            logger.error("reservations left unsettled", extra={"num_events": self._num_open})
        return self._num_open

    def _commands(self, reservation: Reservation) -> _Commands:
        tenant, limits = reservation.tenant_id, reservation.limits
        commands = self._prepared.get(tenant)
        if commands is None or commands.limits is not limits:
            if len(self._prepared) >= _MAX_PREPARED:
                self._prepared.clear()  # those with settlements to send are kept by them
            commands = self._prepared[tenant] = _pack_commands(tenant, limits)
        return commands

    # Settling

    def _enqueue(
        self, reservation: Reservation, actual_tokens: int, *, is_settle: bool
    ) -> Completion[bool]:
        spent = b"%b%b%b%b" % (
            _pack_id(reservation.reservation_id),
            _pack_number(reservation.reserved_tokens),
            _pack_number(actual_tokens),
            _SETTLE if is_settle else _RELEASE,
        )
        commands = self._commands(reservation)
        settlement = _Settlement(commands, spent, Completion())
        self._num_open += 1
        self._all_closed.clear()
        is_first = not self._joining
        if not commands.joining:
            self._joining.append(commands)
        commands.joining.append(settlement)
        if is_first:
            self._client.before_flush(self._send_joined)
        return settlement.is_confirmed

    def _send_joined(self) -> None:
        """All settlements of one tenant in one command."""
        joining, self._joining = self._joining, []
        for commands in joining:
            settlements, commands.joining = commands.joining, []
            self._send(settlements, self._settle_script.by_sha)

    def _send(self, settlements: Sequence[_Settlement], script: bytes) -> None:
        reply = self._client.call(_settle_command(settlements, script))
        reply.then(lambda: self._on_reply(settlements, reply))

    def _on_reply(self, settlements: Sequence[_Settlement], reply: Completion[object]) -> None:
        answer = None if reply.exception() is not None else reply.result()
        if isinstance(answer, int):
            self._confirm(settlements)
        elif _is_unknown_script(answer):
            self._send(settlements, self._settle_script.by_text)
        else:
            self._unconfirmed.extend(settlements)
            self._wake.set()
            for settlement in settlements:
                settlement.is_confirmed.resolve(False)

    def _confirm(self, settlements: Sequence[_Settlement]) -> None:
        self._num_open -= len(settlements)
        if self._num_open == 0:
            self._all_closed.set()
        for settlement in settlements:
            settlement.is_confirmed.resolve(True)

    async def _retry_unconfirmed(self) -> None:
        """One at a time, until the store fails again or none is left."""
        while self._unconfirmed:
            settlement = self._unconfirmed[0]
            command = _settle_command([settlement], self._settle_script.by_text)
            try:
                self._checked(await self._client.call(command))
            except QuotaUnavailable:
                self._unconfirmed.rotate(-1)  # one that the store refuses must not block the others
                return
            self._unconfirmed.popleft()
            self._confirm([settlement])
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
        [],
    )


def _pack_number(number: int) -> bytes:
    digits = b"%d" % number
    return b"$%d\r\n%b\r\n" % (len(digits), digits)


def _pack_id(name: str) -> bytes:
    encoded = name.encode()
    return b"$%d\r\n%b\r\n" % (len(encoded), encoded)


def _evalsha(script: _Script, constant: bytes, varying: bytes, num_parts: int) -> bytes:
    return b"*%d\r\n%b%b%b" % (num_parts, script.by_sha, constant, varying)


def _eval(script: _Script, constant: bytes, varying: bytes, num_parts: int) -> bytes:
    return b"*%d\r\n%b%b%b" % (num_parts, script.by_text, constant, varying)


def _settle_command(settlements: Sequence[_Settlement], script: bytes) -> bytes:
    """Of one tenant."""
    num_parts = _SETTLE_PARTS + _PARTS_PER_SETTLEMENT * len(settlements)
    head = b"*%d\r\n%b%b" % (num_parts, script, settlements[0].commands.settle)
    return head + b"".join([settlement.spent for settlement in settlements])


def _is_unknown_script(reply: object) -> bool:
    return isinstance(reply, hiredis.ReplyError) and str(reply).startswith("NOSCRIPT")


def _verdict(reply: object, limits: Limits) -> Verdict:
    if not isinstance(reply, list) or [type(n) for n in reply] != _SEVEN_NUMBERS:
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
