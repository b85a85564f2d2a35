"""Settles in the place of gateways that died: their events are in the spool, so nothing is lost.

A gateway that is killed takes along what it had not yet told the quota store.  Whoever finds its
segments tells it: the next gateway with that spool, or one beside it.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence, Set
from functools import partial
from typing import Final

from contracts.names import TenantId
from contracts.quota import price_of
from contracts.usage import UsageEvent
from gateway.admission.debts import Debt, Debts, fault_fields, log_paid
from gateway.errors import QuotaUnavailable
from gateway.grants import Grant, PolicySnapshot
from gateway.outbox.orphans import Pass
from gateway.worker_thread import WorkerThread

logger = logging.getLogger(__name__)

_LOOK_S: Final = 2.0
_MOST_S: Final = 60.0  # between looks, where some tenant cannot be told

_Grants = Mapping[tuple[str, str], Grant]  # by tenant and key id


class OwedSettlements:
    """``open_pass`` starts a pass over dead gateways' events; it is used from one thread of ours.

    ``policy``: in force, or ``None`` before there is one: what limits count depends on it.
    """

    def __init__(
        self,
        open_pass: Callable[[], Pass],
        debts: Debts,
        policy: Callable[[], PolicySnapshot | None],
    ) -> None:
        self._open_pass = open_pass
        self._debts = debts
        self._policy = policy
        self._fault: dict[str, str] | None = None
        self._pause_s = _LOOK_S

    async def run(self) -> None:
        """Runs until cancelled."""
        disk = WorkerThread("orphan-reader")
        try:
            while True:
                policy = self._policy()
                if policy is not None:
                    await self._try_to_tell(disk, policy)
                await asyncio.sleep(self._pause_s)
        finally:
            disk.stop()

    async def _try_to_tell(self, disk: WorkerThread, policy: PolicySnapshot) -> None:
        try:
            await self._tell_all(disk, policy)
        except (QuotaUnavailable, OSError) as exc:
            fields = fault_fields(exc)
            if fields != self._fault:  # once per outage
                logger.warning("what dead gateways owe cannot be settled yet", extra=fields)
            self._fault = fields
        else:
            self._fault = None

    async def _tell_all(self, disk: WorkerThread, policy: PolicySnapshot) -> None:
        """One tenant who cannot be told holds up no other.  Raises QuotaUnavailable, OSError."""
        waiting, grants = self._open_pass(), None
        untold: dict[TenantId, QuotaUnavailable] = {}
        of_these: Set[str] | None = None
        try:
            while (events := await disk.call(partial(_next, waiting, of_these))) is not None:
                grants = _by_key(policy) if grants is None else grants
                of_these = await self._pay(events, grants, untold)
        finally:
            disk.submit(waiting.close)
        self._pause_s = min(_MOST_S, 2 * self._pause_s) if untold else _LOOK_S
        if untold:
            raise next(iter(untold.values()))

    async def _pay(
        self,
        events: Sequence[UsageEvent],
        grants: _Grants,
        untold: dict[TenantId, QuotaUnavailable],
    ) -> Set[str]:
        """Whose could not be; ``untold`` gets them, too.

        Raises QuotaUnavailable where nobody's can.
        """
        if not self._debts.are_payable:
            raise QuotaUnavailable("The quota store is away.")
        by_tenant: dict[TenantId, list[Debt]] = defaultdict(list)
        for event in events:
            grant = grants.get((event.tenant_id, event.key_id))
            by_tenant[TenantId(event.tenant_id)].append(debt_of(event, grant))
        for tenant, debts in by_tenant.items():
            if tenant in untold:
                continue
            try:
                log_paid(tenant, await self._debts.pay(tenant, debts))
            except QuotaUnavailable as exc:
                untold[tenant] = exc
        return untold.keys() & by_tenant.keys()


def _next(waiting: Pass, untold: Set[str] | None) -> list[UsageEvent] | None:
    try:
        return waiting.send(untold)
    except StopIteration:
        return None


def debt_of(event: UsageEvent, grant: Grant | None) -> Debt:
    """``None``: the key is gone; then all tokens count towards limits, and no money does."""
    cached, limited_tokens, nano_usd = event.input_cache_read_tokens, event.total_tokens, 0
    if grant is not None:
        grant = grant.for_model(event.model)
        limited_tokens -= int(cached * (1.0 - grant.admission.cached_token_weight))
        price = price_of(grant.prices, event.model, event.adapter_of)
        if price is not None:
            uncached = event.input_tokens - cached
            nano_usd = price.nano_usd(uncached=uncached, cached=cached, output=event.output_tokens)
    return Debt(
        event.event_id, event.total_tokens, limited_tokens, nano_usd, event.is_locally_admitted
    )


def _by_key(policy: PolicySnapshot) -> _Grants:
    return {(g.tenant.tenant_id, g.key.key_id): g for g in policy.grants.values()}
