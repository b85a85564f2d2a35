"""What gateways that died still owed the quota store, told in their place.

Telling it again changes nothing: what was settled is not held any more, and what a gateway had
decided by itself is known by its id for a day.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from contracts.names import QUOTA_OWED_TAG, TenantId, quota_owed
from gateway.admission.quota_scripts import SETTLE
from gateway.admission.quota_store import QuotaStore, slot_of
from gateway.admission.quota_tenants import QuotaTenants
from gateway.admission.resp import first_word, pack, pack_arguments
from gateway.admission.script_runner import ScriptRunner
from gateway.errors import QuotaRefused

logger = logging.getLogger(__name__)

_MOST_AT_ONCE: Final = 100  # in one call: a millisecond of the store's
_SETTLE, _SETTLE_UNTOLD = 1, 2  # as settle.lua has it


@dataclass(frozen=True, slots=True)
class Debt:
    reservation_id: str
    tokens: int
    limited_tokens: int  # that count towards limits
    nano_usd: int
    is_untold: bool  # the store did not decide it, and may never have heard of it


class Debts:
    def __init__(self, store: QuotaStore) -> None:
        self._store = store
        self._runner = ScriptRunner(store)
        self._tenants = QuotaTenants()
        self._slot = slot_of(QUOTA_OWED_TAG)

    @property
    def are_payable(self) -> bool:
        """Some tenants' at least."""
        return self._store.is_reachable

    async def told(self, first: int = 0) -> list[bytes]:
        """What others have put into the store for a gateway to pay, from the ``first`` on.

        Raises QuotaUnavailable; QuotaRefused for an error reply.
        """
        reply = await self._call(pack("LRANGE", quota_owed(), first, first + _MOST_AT_ONCE - 1))
        assert isinstance(reply, list), "LRANGE lists"
        return reply

    async def forget(self, payloads: Sequence[bytes]) -> None:
        """They have been paid.  Raises as ``told``."""
        for payload in payloads:
            await self._call(pack("LREM", quota_owed(), 1, payload))

    async def pay(self, tenant_id: TenantId, debts: Sequence[Debt]) -> int:
        """How many there were that the store did not know of.

        Raises QuotaUnavailable; QuotaRefused for an error reply.
        """
        tenant, num_open = self._tenants.tenant(tenant_id), 0
        for start in range(0, len(debts), _MOST_AT_ONCE):
            some = debts[start : start + _MOST_AT_ONCE]
            arguments = [part for debt in some for part in _parts(debt)]
            answer = await self._runner.run(
                SETTLE, tenant, pack_arguments(*arguments), len(arguments)
            )
            assert isinstance(answer, int), "settle.lua counts"
            num_open += answer
        return num_open

    async def _call(self, command: bytes) -> object:
        reply = await self._store.call(command, self._slot)
        refusal = first_word(reply)
        if refusal is not None:
            raise QuotaRefused(refusal)
        return reply


def log_paid(tenant: TenantId, num_owed: int) -> None:
    if num_owed:
        fields = {"tenant_id": tenant, "num_events": num_owed}
        logger.warning("settled what a dead gateway owed", extra=fields)


def fault_fields(exc: Exception) -> dict[str, str]:
    """For the log: why nothing can be paid."""
    reason = {"reason": exc.reason} if isinstance(exc, QuotaRefused) else {}
    return {"error": str(exc), **reason}


def _parts(debt: Debt) -> Iterable[str | int]:
    kind = _SETTLE_UNTOLD if debt.is_untold else _SETTLE
    return (debt.reservation_id, debt.tokens, debt.limited_tokens, debt.nano_usd, kind)
