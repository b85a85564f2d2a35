"""``gateway_boots`` brought up to date, where billing of a version before it has posted beside.

That adds nothing to these sums.  Until they are of all events an audit by the hour looks through
those for numbers that seem to lack.
"""

from collections.abc import Sequence
from dataclasses import astuple
from typing import Final

from sqlalchemy import Connection, text

from billing.audit_sums import (
    BootSums,
    billed_accounts,
    counted_sums,
    kept_sums,
    num_by_gateways,
    recovered_accounts,
)
from billing.ledger_database import LedgerRef, reading
from billing.ledger_schema import gateway_boots

_SOURCE: Final = "counted"  # beside those of the batches' sources, which bear other names
_COLUMNS: Final = gateway_boots.columns.keys()
_KEEP: Final = text(
    f"INSERT INTO gateway_boots ({', '.join(_COLUMNS)}) "
    f"VALUES ({', '.join(f':{name}' for name in _COLUMNS)}) "
    "ON CONFLICT (gateway_boot_id, source_id) DO UPDATE SET "
    + ", ".join(f"{name} = excluded.{name}" for name in _COLUMNS[2:])
    + " WHERE gateway_boots.num_events < excluded.num_events"
)


def lacking_sums(ledger: LedgerRef) -> list[BootSums]:
    """By boot, of all events that came without any.  Counts all events where there are such.

    Raises LedgerMissing, LedgerUnavailable.
    """
    with reading(ledger, takes_long=True) as connection:
        num_kept = sum(sums.num_events for sums in kept_sums(connection))
        if num_kept == num_by_gateways(billed_accounts(connection), recovered_accounts(connection)):
            return []
        kept = {sums.boot_id: sums for sums in kept_sums(connection, but_of=_SOURCE)}
        return [
            lacking
            for sums in counted_sums(connection)
            if (lacking := sums.without(kept.get(sums.boot_id))).num_events > 0
        ]


def keep_sums(connection: Connection, lacking: Sequence[BootSums]) -> None:
    """In place of what was kept of them by an earlier count: of two counts the later one stands."""
    for sums in lacking:
        boot_id, *numbers = astuple(sums)  # in the order of the table's columns
        connection.execute(_KEEP, dict(zip(_COLUMNS, (boot_id, _SOURCE, *numbers), strict=True)))
