"""Quotas in Valkey or Redis: one atomic script per decision, on the store's own clock.

While the store is away, local shares decide: see ``local_shares``.  It is told what they admitted
as soon as it is back, and of every settlement: see ``settlement_queue``.

A reservation is leased, and the lease renewed for as long as its request runs: what a killed
gateway held comes back when the lease ends.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from gateway.admission.local_shares import LocalShares
from gateway.admission.presence import Presence
from gateway.admission.quota_plan import QuotaPlan
from gateway.admission.quota_scripts import RESERVE
from gateway.admission.quota_store import QuotaStore
from gateway.admission.quota_tenants import QuotaTenant, QuotaTenants
from gateway.admission.reservation_leases import ReservationLeases
from gateway.admission.reserve_call import (
    ReserveCall,
    asked,
    num_arguments_of,
    reserve_arguments,
    reserve_call,
    verdict_of,
)
from gateway.admission.script_runner import ScriptRunner
from gateway.admission.settlement_queue import SettlementQueue, spent, spent_nothing
from gateway.admission.verdict import Reservation, Verdict
from gateway.completion import Broadcast
from gateway.errors import QuotaUnanswered, QuotaUnavailable

_MAX_CALLS: Final = 10_000  # as many plans
MAX_OPEN: Final = 50_000  # settlements that the store has not confirmed: under a kilobyte each


class RedisLimiter:
    def __init__(
        self,
        store: QuotaStore,
        shares: LocalShares,
        *,
        name: str,
        lease_s: float,
        monotonic_s: Callable[[], float],
        max_open: int = MAX_OPEN,
    ) -> None:
        """``name``: ours among all gateways that share the store."""
        self._store = store
        self._shares = shares
        self._monotonic_s = monotonic_s
        self._tenants = QuotaTenants()
        self._calls: dict[QuotaPlan, ReserveCall] = {}
        self._runner = ScriptRunner(store)
        self._presence = Presence(store, shares, name, monotonic_s)
        self._leases = ReservationLeases(self._runner, lease_s)
        self._queue = SettlementQueue(
            store,
            self._runner,
            lease=self._leases.lease,
            max_open=max_open,
            on_told=self._leases.held.__setitem__,
        )

    @property
    def is_reachable(self) -> bool:
        return self._store.is_reachable

    @property
    def can_decide(self) -> bool:
        return self.is_reachable or self._shares.is_any_leased(self._monotonic_s())

    @property
    def num_local_admissions(self) -> int:
        return self._shares.num_admitted

    @property
    def num_open_settlements(self) -> int:
        return self._queue.num_open

    @property
    def is_owing(self) -> bool:
        return self._queue.is_owing

    async def reserve(self, reservation: Reservation) -> Verdict:
        """Raises QuotaUnavailable.  The reservation is held only if the verdict has no refusal."""
        plan = reservation.plan
        call = self._calls.get(plan) or self._new_call(plan)
        tenant = call.tenant
        try:
            reply = await self._store.call(call.beginning + asked(reservation), tenant.slot)
            if type(reply) is not list:  # an error, maybe only that the script is not known
                reply = await self._ask_again(tenant, reservation)
            verdict = verdict_of(reply, plan)
        except asyncio.CancelledError:
            self._take_back(reservation)
            raise
        except QuotaUnavailable as away:
            return self._reserve_without_the_store(reservation, tenant, away)
        if verdict.refusal is None:
            self._leases.held[reservation.reservation_id] = tenant
        return verdict

    def _new_call(self, plan: QuotaPlan) -> ReserveCall:
        if len(self._calls) >= _MAX_CALLS:
            self._calls.clear()
        tenant = self._tenants.tenant(plan.tenant_id)
        call = self._calls[plan] = reserve_call(self._leases.lease, tenant, plan)
        return call

    async def _ask_again(self, tenant: QuotaTenant, reservation: Reservation) -> object:
        """Raises QuotaUnavailable; QuotaRefused for an error reply."""
        arguments = reserve_arguments(self._leases.lease, reservation, is_decided=False)
        return await self._runner.run(RESERVE, tenant, arguments, num_arguments_of(reservation))

    def _reserve_without_the_store(
        self, reservation: Reservation, tenant: QuotaTenant, away: QuotaUnavailable
    ) -> Verdict:
        """Raises QuotaUnavailable where only the store can decide."""
        is_admitted = False
        try:
            if self._queue.is_full:  # the store must be told of each
                raise QuotaUnavailable("The quota store has been away for too long.")
            home = self._store.home_of(tenant.slot)
            verdict = self._shares.reserve(reservation, home, self._monotonic_s())
            is_admitted = verdict.refusal is None
        finally:
            if not is_admitted and isinstance(away, QuotaUnanswered):
                self._take_back(reservation)
        if is_admitted:
            self._queue.put_decision(tenant, reservation)
        return verdict

    def _take_back(self, reservation: Reservation) -> None:
        """It may have been made although no answer came; else it would be held for a lease."""
        if not self._queue.is_full:
            self.release(reservation)

    def settle(
        self,
        reservation: Reservation,
        *,
        used_tokens: int,
        used_nano_usd: int,
        limited_tokens: int | None = None,
    ) -> Broadcast[bool]:
        """``limited_tokens``: those that count towards limits, if not all.

        True once the store has confirmed; False if it did not at once.

        Then it goes on in the background, whether or not somebody waits.
        """
        reservation_id = reservation.reservation_id
        limited = used_tokens if limited_tokens is None else limited_tokens
        if reservation_id in self._shares.running:
            self._shares.settle(reservation, limited, self._monotonic_s())
        used = spent(reservation_id, used_tokens, limited, used_nano_usd)
        tenant = self._leases.held.pop(reservation_id, None)
        if tenant is None:  # decided without the store
            tenant = self._tenants.tenant(reservation.plan.tenant_id)
        return self._queue.put(tenant, reservation_id, used)

    def release(self, reservation: Reservation) -> Broadcast[bool]:
        """As ``settle``, for an ask that led to no request: gives the request back, too."""
        self._shares.release(reservation, self._monotonic_s())
        self._leases.held.pop(reservation.reservation_id, None)
        tenant = self._tenants.tenant(reservation.plan.tenant_id)
        nothing = spent_nothing(reservation.reservation_id)
        return self._queue.put(tenant, reservation.reservation_id, nothing)

    async def run(self) -> None:
        """Renews leases, and sends again what was not confirmed; runs until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._presence.run())
            group.create_task(self._leases.run())
            group.create_task(self._queue.run())

    async def flush(self, timeout_s: float) -> int:
        """As ``SettlementQueue.flush``."""
        return await self._queue.flush(timeout_s)
