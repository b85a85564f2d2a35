"""Leases are renewed well before they end, at whatever moment a reservation was made."""

import asyncio

import pytest

from contracts.names import tenant_id
from gateway.admission.quota_scripts import Script
from gateway.admission.quota_tenants import QuotaTenant, QuotaTenants
from gateway.admission.reservation_leases import ReservationLeases
from gateway.errors import QuotaUnanswered

LEASE_S = 120.0


class SilentStore:
    """Notes when it was called, and gives no answer."""

    def __init__(self) -> None:
        self.called_at_s: list[float] = []

    async def run(
        self, script: Script, tenant: QuotaTenant, arguments: bytes, num_arguments: int
    ) -> object:
        self.called_at_s.append(asyncio.get_running_loop().time())
        raise QuotaUnanswered("The quota store did not answer.")


@pytest.mark.looptime
@pytest.mark.parametrize("made_at_s", [0.0, 29.0, 31.0, 59.0])
async def test_a_lease_is_renewed_three_times_before_it_ends(made_at_s: float) -> None:
    store = SilentStore()
    leases = ReservationLeases(store, LEASE_S)
    running = asyncio.create_task(leases.run())
    await asyncio.sleep(made_at_s)
    leases.held["r1"] = QuotaTenants().tenant(tenant_id("acme"))
    await asyncio.sleep(LEASE_S - 1)
    assert len(store.called_at_s) >= 3
    assert store.called_at_s[0] <= made_at_s + LEASE_S / 4
    del leases.held["r1"]
    num_calls = len(store.called_at_s)
    await asyncio.sleep(LEASE_S)
    assert len(store.called_at_s) == num_calls
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
