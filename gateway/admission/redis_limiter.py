"""Quotas in Valkey or Redis: one atomic script per decision, on the store's own clock.

While the store is away, local shares decide: see ``local_shares``.  It is told what they admitted
as soon as it is back.  A settlement is never lost while the process lives: it waits for the store,
and being idempotent it may safely be sent twice.

A reservation is leased, and the lease renewed for as long as its request runs: what a killed
gateway held comes back when the lease ends.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import hiredis
import msgspec

from contracts.names import QUOTA_GATEWAYS, TenantId
from gateway.admission.limiter import LIMIT_BY_NUMBER, Budget, Refusal, Reservation, Verdict
from gateway.admission.local_shares import LocalShares
from gateway.admission.quota_plan import QuotaPlan, rule_in_words
from gateway.admission.quota_scripts import (
    RENEW,
    RESERVE,
    SETTLE,
    pack_id,
    pack_keys,
    pack_number,
    presence_command,
)
from gateway.admission.quota_store import QuotaStore, slot_of
from gateway.admission.resp import first_word, pack_arguments
from gateway.completion import Completion
from gateway.errors import QuotaRefused, QuotaUnanswered, QuotaUnavailable

logger = logging.getLogger(__name__)

_RETRY_PAUSE_S = 0.1
_RENEWALS_PER_LEASE: Final = 3
_RESERVE_ARGUMENTS = 6  # beside the plan's
_PARTS_PER_SETTLEMENT = 5
_SETTLE, _RELEASE = pack_arguments(1), pack_arguments(0)
_TO_DECIDE, _DECIDED = pack_arguments(0), pack_arguments(1)
_PRESENCE_PAUSE_S: Final = 1.0
_NUM_REPLIED = 11  # what reserve.lua returns
_MAX_TENANTS = 10_000  # whose keys are kept packed

_MakeCommand = Callable[[bytes, bytes, int], bytes]  # Script's, of either kind


class _Settlement(msgspec.Struct, frozen=True):
    """One ``settle`` or ``release`` that the store has not confirmed yet."""

    tenant: "_Tenant"
    spent: bytes  # its part of the command, packed
    decided: bytes | None  # first tells the store what it did not decide itself
    is_confirmed: Completion[bool]


@dataclass(slots=True, eq=False)
class _Tenant:
    keys: bytes  # packed
    slot: int
    joining: list[_Settlement]  # until the next write to the store


class RedisLimiter:
    def __init__(
        self,
        store: QuotaStore,
        shares: LocalShares,
        *,
        name: str,
        lease_s: float,
        monotonic_s: Callable[[], float],
    ) -> None:
        """``name``: ours among all gateways that share the store."""
        self._store = store
        self._shares = shares
        self._presence = presence_command(name)
        self._monotonic_s = monotonic_s
        self._lease_s = lease_s
        self._lease = pack_number(int(lease_s * 1000))
        self._tenants: dict[TenantId, _Tenant] = {}
        self._joining: list[_Tenant] = []  # those with settlements to send
        self._held: dict[str, _Tenant] = {}  # by reservation id: since the last renewal
        self._held_long: dict[str, _Tenant] = {}  # since before it
        self._decided_locally: set[str] = set()  # ids of running requests
        self._num_open = 0
        self._all_closed = asyncio.Event()
        self._all_closed.set()
        self._unconfirmed: deque[_Settlement] = deque()  # were sent, and must be sent again
        self._last_refusal: str | None = None
        self._wake = asyncio.Event()

    @property
    def is_reachable(self) -> bool:
        return self._store.is_reachable

    @property
    def can_decide(self) -> bool:
        return self.is_reachable or self._shares.is_leased(self._monotonic_s())

    @property
    def num_gateways(self) -> int:
        """That share the store, as it last said."""
        return self._shares.num_gateways

    @property
    def num_local_admissions(self) -> int:
        return self._shares.num_admitted

    async def reserve(self, reservation: Reservation) -> Verdict:
        """Raises QuotaUnavailable.  The reservation is held only if the verdict has no refusal."""
        tenant = self._tenant(reservation.plan.tenant_id)
        arguments = self._reserve_arguments(reservation, _TO_DECIDE)
        num_arguments = _RESERVE_ARGUMENTS + reservation.plan.num_arguments
        try:
            reply = await self._store.call(
                RESERVE.command(tenant.keys, arguments, num_arguments), tenant.slot
            )
            if _is_unknown_script(reply):
                command = RESERVE.command_in_full(tenant.keys, arguments, num_arguments)
                reply = await self._store.call(command, tenant.slot)
            verdict = _verdict(self._checked(reply), reservation.plan)
        except asyncio.CancelledError:
            self.release(reservation)  # it may have been made although no answer came
            raise
        except QuotaUnavailable as away:
            return self._reserve_without_the_store(reservation, away)
        if verdict.refusal is None:
            self._held[reservation.reservation_id] = tenant
        return verdict

    def _reserve_without_the_store(
        self, reservation: Reservation, away: QuotaUnavailable
    ) -> Verdict:
        """Raises QuotaUnavailable where only the store can decide."""
        is_admitted = False
        try:
            verdict = self._shares.reserve(reservation, self._monotonic_s())
            is_admitted = verdict.refusal is None
        finally:
            if not is_admitted and isinstance(away, QuotaUnanswered):
                self.release(reservation)  # as above
        if is_admitted:
            self._decided_locally.add(reservation.reservation_id)
        return verdict

    def _reserve_arguments(self, reservation: Reservation, is_decided: bytes) -> bytes:
        return b"%b%b%b%b%b%b%b" % (
            self._lease,
            reservation.plan.arguments,
            is_decided,
            pack_number(reservation.reserved_tokens),
            pack_number(reservation.reserved_nano_usd),
            pack_id(reservation.reservation_id),
            pack_number(reservation.turn),
        )

    def settle(
        self,
        reservation: Reservation,
        *,
        used_tokens: int,
        used_nano_usd: int,
        limited_tokens: int | None = None,
    ) -> Completion[bool]:
        """``limited_tokens``: those that count towards limits, if not all.

        True once the store has confirmed; False if it did not at once.

        Then it goes on in the background, whether or not somebody waits.
        """
        tokens = pack_number(used_tokens)
        limited = tokens if limited_tokens is None else pack_number(limited_tokens)
        spent = b"%b%b%b%b" % (tokens, limited, pack_number(used_nano_usd), _SETTLE)
        if reservation.reservation_id in self._decided_locally:
            limited_tokens = used_tokens if limited_tokens is None else limited_tokens
            return self._settle_later(reservation, spent, limited_tokens)
        return self._enqueue(reservation, spent)

    def release(self, reservation: Reservation) -> Completion[bool]:
        """As ``settle``, for an ask that led to no request: gives the request back, too."""
        if reservation.reservation_id in self._decided_locally:
            self._decided_locally.remove(reservation.reservation_id)
            self._shares.settle(reservation, 0, self._monotonic_s())
        return self._enqueue(reservation, b"%b%b%b%b" % (_RELEASE, _RELEASE, _RELEASE, _RELEASE))

    async def run(self) -> None:
        """Renews leases, and sends again what was not confirmed; runs until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep_present())
            group.create_task(self._keep_renewing())
            group.create_task(self._keep_retrying())

    async def flush(self, timeout_s: float) -> int:
        """Waits for open settlements at shutdown; returns, and logs, how many stay unconfirmed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._all_closed.wait()
        if self._num_open:
            logger.error("reservations left unsettled", extra={"num_events": self._num_open})
        return self._num_open

    def _tenant(self, tenant_id: TenantId) -> _Tenant:
        tenant = self._tenants.get(tenant_id)
        if tenant is None:
            if len(self._tenants) >= _MAX_TENANTS:
                self._tenants.clear()  # those with settlements to send are kept by them
            tenant = self._tenants[tenant_id] = _Tenant(
                pack_keys(tenant_id), slot_of(tenant_id), []
            )
        return tenant

    # Leases

    async def _keep_present(self) -> None:
        """Leases our share of all limits, for as long as the store answers."""
        slot = slot_of(QUOTA_GATEWAYS[1:-1])
        while True:
            pause_s = _RETRY_PAUSE_S
            with contextlib.suppress(QuotaUnavailable):
                num_gateways = await self._store.call(self._presence, slot)
                if isinstance(num_gateways, int):
                    self._shares.renew(num_gateways, self._monotonic_s())
                    pause_s = _PRESENCE_PAUSE_S
            await asyncio.sleep(pause_s)

    async def _keep_renewing(self) -> None:
        while True:
            await asyncio.sleep(self._lease_s / _RENEWALS_PER_LEASE)
            self._renew()
            self._held_long.update(self._held)
            self._held = {}

    def _renew(self) -> None:
        """Those that were held at the last renewal already: most requests end before.

        Not answered is not retried: the next renewal comes before the lease ends.
        """
        ids_by_tenant: dict[_Tenant, list[bytes]] = {}
        for reservation_id, tenant in self._held_long.items():
            ids_by_tenant.setdefault(tenant, []).append(pack_id(reservation_id))
        for tenant, ids in ids_by_tenant.items():
            arguments = self._lease + b"".join(ids)
            command = RENEW.command_in_full(tenant.keys, arguments, 1 + len(ids))
            self._store.call(command, tenant.slot)

    # Settling

    def _enqueue(self, reservation: Reservation, used: bytes) -> Completion[bool]:
        reservation_id = reservation.reservation_id
        tenant = self._tenant(reservation.plan.tenant_id)
        if self._held.pop(reservation_id, None) is None:
            self._held_long.pop(reservation_id, None)
        settlement = _Settlement(tenant, pack_id(reservation_id) + used, None, Completion())
        self._num_open += 1
        self._all_closed.clear()
        is_first = not self._joining
        if not tenant.joining:
            self._joining.append(tenant)
        tenant.joining.append(settlement)
        if is_first:
            self._store.before_flush(self._send_joined)
        return settlement.is_confirmed

    def _settle_later(
        self, reservation: Reservation, used: bytes, used_tokens: int
    ) -> Completion[bool]:
        """Of one that the store did not decide: it is told once it answers, and nobody waits."""
        plan = reservation.plan
        self._decided_locally.remove(reservation.reservation_id)
        self._shares.settle(reservation, used_tokens, self._monotonic_s())
        tenant = self._tenant(plan.tenant_id)
        decided = RESERVE.command_in_full(
            tenant.keys,
            self._reserve_arguments(reservation, _DECIDED),
            _RESERVE_ARGUMENTS + plan.num_arguments,
        )
        spent = pack_id(reservation.reservation_id) + used
        settlement = _Settlement(tenant, spent, decided, Completion())
        self._num_open += 1
        self._all_closed.clear()
        self._unconfirmed.append(settlement)
        self._wake.set()
        settlement.is_confirmed.resolve(False)
        return settlement.is_confirmed

    def _send_joined(self) -> None:
        """All settlements of one tenant in one command."""
        joining, self._joining = self._joining, []
        for tenant in joining:
            settlements, tenant.joining = tenant.joining, []
            self._send(settlements, SETTLE.command)

    def _send(self, settlements: Sequence[_Settlement], command: _MakeCommand) -> None:
        slot = settlements[0].tenant.slot
        reply = self._store.call(_settle_command(settlements, command), slot)
        reply.then(lambda: self._on_reply(settlements, reply))

    def _on_reply(self, settlements: Sequence[_Settlement], reply: Completion[object]) -> None:
        answer = None if reply.exception() is not None else reply.result()
        if isinstance(answer, int):
            self._confirm(settlements)
        elif _is_unknown_script(answer):
            self._send(settlements, SETTLE.command_in_full)
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

    async def _keep_retrying(self) -> None:
        while True:
            await self._wake.wait()
            await asyncio.sleep(_RETRY_PAUSE_S)
            await self._retry_unconfirmed()

    async def _retry_unconfirmed(self) -> None:
        """One at a time, until the store fails again or none is left."""
        while self._unconfirmed:
            settlement = self._unconfirmed[0]
            command = _settle_command([settlement], SETTLE.command_in_full)
            try:
                if settlement.decided is not None:
                    slot = settlement.tenant.slot
                    self._checked(await self._store.call(settlement.decided, slot))
                self._checked(await self._store.call(command, settlement.tenant.slot))
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


def _settle_command(settlements: Sequence[_Settlement], command: _MakeCommand) -> bytes:
    """Of one tenant."""
    arguments = b"".join([settlement.spent for settlement in settlements])
    return command(settlements[0].tenant.keys, arguments, _PARTS_PER_SETTLEMENT * len(settlements))


def _is_unknown_script(reply: object) -> bool:
    return isinstance(reply, hiredis.ReplyError) and str(reply).startswith("NOSCRIPT")


def _verdict(reply: object, plan: QuotaPlan) -> Verdict:
    if not isinstance(reply, list) or len(reply) != _NUM_REPLIED or type(reply[0]) is not int:
        raise QuotaUnavailable("The quota store answered something else.")
    kind, rule, retry_after_ms, allowed, remaining, *rates = reply
    budget = Budget(*rates)
    if kind == 0:
        return Verdict(budget, None)
    words = rule_in_words(plan.rules[rule - 1])
    refusal = Refusal(LIMIT_BY_NUMBER[kind], words, allowed, remaining, retry_after_ms)
    return Verdict(msgspec.structs.replace(budget, retry_after_ms=retry_after_ms), refusal)
