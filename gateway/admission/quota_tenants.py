"""Each tenant's place in the quota store, and the settlements that are on their way to it."""

from dataclasses import dataclass, field

import msgspec

from contracts.names import TenantId
from gateway.admission.quota_scripts import pack_keys
from gateway.admission.quota_store import slot_of
from gateway.admission.verdict import Reservation
from gateway.completion import Broadcast

_MAX_TENANTS = 10_000  # whose keys are kept packed


class Settlement(msgspec.Struct, eq=False):
    """What the store has not confirmed yet of one reservation."""

    reservation_id: str
    spent: bytes | None  # its part of the command, packed; None while the request runs
    decided: Reservation | None  # first tells the store what it did not decide itself
    is_confirmed: Broadcast[bool]  # one for all of a command


@dataclass(slots=True, eq=False)
class QuotaTenant:
    keys: bytes  # packed
    slot: int
    joining: list[Settlement] = field(default_factory=list)  # until the next write to the store
    is_confirmed: Broadcast[bool] = field(default_factory=Broadcast)  # of those
    owed: dict[str, Settlement] = field(default_factory=dict)  # by reservation id: to be told again
    num_at_once: int = 1  # of what is owed, in one call: more as long as they succeed


class QuotaTenants:
    def __init__(self) -> None:
        self._tenants: dict[TenantId, QuotaTenant] = {}

    def tenant(self, tenant_id: TenantId) -> QuotaTenant:
        tenant = self._tenants.get(tenant_id)
        if tenant is None:
            if len(self._tenants) >= _MAX_TENANTS:
                self._tenants.clear()  # those with settlements to send are kept by them
            tenant = QuotaTenant(pack_keys(tenant_id), slot_of(tenant_id))
            self._tenants[tenant_id] = tenant
        return tenant
