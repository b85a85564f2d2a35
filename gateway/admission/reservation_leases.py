"""Renews the leases of what this gateway holds, for as long as its requests run."""

import asyncio
import contextlib
from typing import Final, Protocol

from gateway.admission.quota_scripts import RENEW, Script, pack_id, pack_number
from gateway.admission.quota_tenants import QuotaTenant
from gateway.errors import QuotaUnavailable

_RENEWALS_PER_LEASE: Final = 4  # two may fail, at whatever moment the reservation was made
_MOST_AT_ONCE: Final = 500  # reservations in one call: a millisecond of the store's


class RunsScripts(Protocol):
    async def run(
        self, script: Script, tenant: QuotaTenant, arguments: bytes, num_arguments: int
    ) -> object:
        """Raises QuotaUnavailable."""


class ReservationLeases:
    def __init__(self, runner: RunsScripts, lease_s: float) -> None:
        self._runner = runner
        self._lease_s = lease_s
        self.lease = pack_number(int(lease_s * 1000))
        self.held: dict[str, QuotaTenant] = {}  # by reservation id

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            await asyncio.sleep(self._lease_s / _RENEWALS_PER_LEASE)
            await self._renew()

    async def _renew(self) -> None:
        """Not answered is not retried: the next renewal comes before the lease ends."""
        ids_by_tenant: dict[QuotaTenant, list[bytes]] = {}
        for reservation_id, tenant in self.held.items():
            ids_by_tenant.setdefault(tenant, []).append(pack_id(reservation_id))
        for tenant, ids in ids_by_tenant.items():
            for first in range(0, len(ids), _MOST_AT_ONCE):
                some = ids[first : first + _MOST_AT_ONCE]
                with contextlib.suppress(QuotaUnavailable):
                    arguments = self.lease + b"".join(some)
                    await self._runner.run(RENEW, tenant, arguments, 1 + len(some))
