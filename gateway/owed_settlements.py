"""Settles in the place of gateways that died: their events are in the spool, so nothing is lost.

A gateway that is killed takes along what it had not yet told the quota store.  Whoever finds its
segments tells it: the next gateway with that spool, or one beside it.  So is what an auditor has
posted in its place, which waits in the store for any gateway.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from typing import Final

from contracts.debts import decode_debt
from contracts.errors import ContractError
from contracts.names import TenantId, tenant_id
from contracts.usage import UsageEvent
from gateway.admission.debts import Debt, Debts
from gateway.errors import QuotaUnavailable
from gateway.grants import Grant, PolicySnapshot
from gateway.worker_thread import WorkerThread

logger = logging.getLogger(__name__)

_LOOK_S: Final = 2.0

Pass = Generator[list[UsageEvent]]
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
        self._fault: str | None = None

    async def run(self) -> None:
        """Runs until cancelled."""
        disk = WorkerThread("orphan-reader")
        try:
            while True:
                policy = self._policy()
                if policy is not None:
                    await self._try_to_tell(disk, policy)
                await asyncio.sleep(_LOOK_S)
        finally:
            disk.stop()

    async def _try_to_tell(self, disk: WorkerThread, policy: PolicySnapshot) -> None:
        try:
            await self._tell_all(disk, policy)
            await self._tell_recovered()
        except (QuotaUnavailable, OSError) as exc:
            if str(exc) != self._fault:  # once per outage
                fields = {"error": str(exc)}
                logger.warning("what dead gateways owe cannot be settled yet", extra=fields)
            self._fault = str(exc)
        else:
            self._fault = None

    async def _tell_all(self, disk: WorkerThread, policy: PolicySnapshot) -> None:
        """Raises QuotaUnavailable, OSError."""
        waiting, grants = self._open_pass(), None
        try:
            while (events := await disk.call(partial(next, waiting, None))) is not None:
                grants = _by_key(policy) if grants is None else grants
                await self._pay(events, grants)
        finally:
            disk.submit(waiting.close)

    async def _tell_recovered(self) -> None:
        """Raises QuotaUnavailable."""
        while payloads := await self._debts.told():
            for payload in payloads:
                try:
                    owed = decode_debt(payload)
                    tenant = tenant_id(owed.tenant_id)
                except ContractError as exc:
                    fields = {"error": str(exc)}
                    logger.error("a debt makes no sense, and is dropped", extra=fields)  # noqa: TRY400 - no bug
                    continue
                tokens = owed.tokens
                debt = Debt(owed.event_id, tokens, tokens, owed.nano_usd, owed.is_untold)
                _tell(tenant, await self._debts.pay(tenant, [debt]))
            await self._debts.forget(payloads)

    async def _pay(self, events: Sequence[UsageEvent], grants: _Grants) -> None:
        by_tenant: dict[TenantId, list[Debt]] = defaultdict(list)
        for event in events:
            grant = grants.get((event.tenant_id, event.key_id))
            by_tenant[TenantId(event.tenant_id)].append(debt_of(event, grant))
        for tenant, debts in by_tenant.items():
            _tell(tenant, await self._debts.pay(tenant, debts))


def debt_of(event: UsageEvent, grant: Grant | None) -> Debt:
    """``None``: the key is gone; then all tokens count towards limits, and no money does."""
    cached, limited_tokens, nano_usd = event.input_cache_read_tokens, event.total_tokens, 0
    if grant is not None:
        grant = grant.for_model(event.model)
        limited_tokens -= int(cached * (1.0 - grant.admission.cached_token_weight))
        price = grant.prices.get(event.model)
        if price is not None:
            uncached = event.input_tokens - cached
            nano_usd = price.nano_usd(uncached=uncached, cached=cached, output=event.output_tokens)
    return Debt(
        event.event_id, event.total_tokens, limited_tokens, nano_usd, event.is_locally_admitted
    )


def _by_key(policy: PolicySnapshot) -> _Grants:
    return {(g.tenant.tenant_id, g.key.key_id): g for g in policy.grants.values()}


def _tell(tenant: TenantId, num_owed: int) -> None:
    if num_owed:
        fields = {"tenant_id": tenant, "num_events": num_owed}
        logger.warning("settled what a dead gateway owed", extra=fields)
