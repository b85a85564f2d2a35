"""Settles what an auditor has posted in the place of gateways that died: it waits in the store.

Any gateway takes it up.  One tenant's that cannot be settled is in nobody else's way.
"""

import asyncio
import logging
from typing import Final

from contracts.debts import decode_debt
from contracts.errors import ContractError
from contracts.names import tenant_id
from gateway.admission.debts import Debt, Debts, fault_fields, log_paid
from gateway.errors import QuotaUnavailable

logger = logging.getLogger(__name__)

_LOOK_S: Final = 2.0


class RecoveredSettlements:
    def __init__(self, debts: Debts) -> None:
        self._debts = debts
        self._fault: dict[str, str] | None = None
        self._is_told = False

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            try:
                await self._settle_all()
            except QuotaUnavailable as exc:
                fields = fault_fields(exc)
                lasts = fields == self._fault  # since the look before: both may be starting
                if lasts and not self._is_told:
                    logger.warning("what was recovered cannot be settled yet", extra=fields)
                self._is_told, self._fault = lasts, fields
            else:
                self._is_told, self._fault = False, None
            await asyncio.sleep(_LOOK_S)

    async def _settle_all(self) -> None:
        """Raises QuotaUnavailable."""
        num_kept, fault = 0, None
        while payloads := await self._debts.told(num_kept):
            paid: list[bytes] = []
            for payload in payloads:
                try:
                    await self._settle(payload)
                    paid.append(payload)
                except QuotaUnavailable as exc:
                    fault = exc
            await self._debts.forget(paid)
            num_kept += len(payloads) - len(paid)
        if fault is not None:
            raise fault

    async def _settle(self, payload: bytes) -> None:
        """Raises QuotaUnavailable."""
        try:
            owed = decode_debt(payload)
            tenant = tenant_id(owed.tenant_id)
        except ContractError as exc:
            fields = {"error": str(exc)}
            logger.error("a debt makes no sense, and is dropped", extra=fields)  # noqa: TRY400 - no bug
            return
        debt = Debt(owed.event_id, owed.tokens, owed.tokens, owed.nano_usd, owed.is_untold)
        log_paid(tenant, await self._debts.pay(tenant, [debt]))
