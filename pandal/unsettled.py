"""Tells the quota of what is in the ledger and never was settled: its gateway died in between.

A reservation bears its event's id.  One that is still held, or whose lease has ended, is settled
with what the ledger knows, by the gateways' own script: what was settled already is not held, so
nothing counts twice.  The store remembers for a day.
"""

from collections.abc import Iterable

from billing.lookup import used_by_event
from billing.money import nano_usd_up
from billing.quota_store import quota_store
from contracts.names import TenantId, quota_holds_key
from gateway.admission.quota_scripts import KEY_BUILDERS, SETTLE

_SETTLED = 1


def settle_posted(quota_url: str, ledger_url: str, tenants: Iterable[TenantId]) -> int:
    """How many there were.  Raises QuotaStoreUnavailable, LedgerUnavailable."""
    num_settled = 0
    with quota_store(quota_url) as store:
        for tenant in tenants:
            held = [event_id.decode() for event_id in store.hkeys(quota_holds_key(tenant))]
            arguments: list[str | int] = []
            for event_id, used in used_by_event(ledger_url, tenant, held).items():
                nano_usd = nano_usd_up(used.pico_usd)
                arguments += (event_id, used.num_tokens, used.num_tokens, nano_usd, _SETTLED)
            if arguments:
                keys = [build(tenant) for build in KEY_BUILDERS]
                num_settled += store.eval(SETTLE.text, len(keys), *keys, *arguments)
    return num_settled
