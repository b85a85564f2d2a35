"""What was used and waits for a price: how much of it, and of which models.  Read-only."""

import operator
from functools import reduce
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, func, select

from billing.ledger_database import LedgerRef, reading
from billing.ledger_schema import TOKEN_COLUMNS, unpriced_events, usage_events

HAS_USAGE: Final[ColumnElement[bool]] = reduce(operator.add, TOKEN_COLUMNS) > 0
_IS_SAME_EVENT: Final = (unpriced_events.c.tenant_id == usage_events.c.tenant_id) & (
    unpriced_events.c.event_id == usage_events.c.event_id
)


def num_unpriced_by(
    connection: Connection, group: ColumnElement[Any], *within: ColumnElement[bool]
) -> dict[Any, int]:
    """Requests by ``group``; that and ``within`` are about ``usage_events``."""
    query = (
        select(group, func.count())
        .select_from(unpriced_events)
        .join(usage_events, _IS_SAME_EVENT)
        .where(*within, HAS_USAGE)
        .group_by(group)
    )
    return {row[0]: row[1] for row in connection.execute(query)}


def unpriced_models(ledger: LedgerRef) -> tuple[str, ...]:
    """Sorted.  Raises LedgerMissing, LedgerUnavailable."""
    with reading(ledger) as connection:
        return tuple(sorted(num_unpriced_by(connection, usage_events.c.model)))
