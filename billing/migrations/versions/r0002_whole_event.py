"""Every fact of an event that bills, audits and usage reports are made by; prices by tier.

Events that are there already have them in their payload.  Until now every cache write was priced
as uncached input and all output as text, and so such prices say.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import sqlalchemy as sa
from alembic import op

from billing.ledger_upgrade import allow_changes, refuse_changes

revision = "0002"
down_revision = "0001"

_EVENTS_AT_ONCE = 1_000
_FILL = sa.text(
    "UPDATE usage_events SET key_id = :key_id, tier = :tier, outcome = :outcome, "
    "usage_source = :usage_source, gateway_boot_id = :gateway_boot_id, gateway_seq = :gateway_seq, "
    "posted_at_us = occurred_at_us WHERE tenant_id = :tenant_id AND event_id = :event_id"
)
_FIELDS = ("key_id", "tier", "outcome", "usage_source", "gateway_boot_id", "gateway_seq")


def upgrade() -> None:
    connection = op.get_bind()
    for table in ("prices", "usage_events"):
        allow_changes(connection, table)
    _add_columns()
    connection.execute(
        sa.text(
            "UPDATE prices SET input_cache_write_pico_usd = input_uncached_pico_usd, "
            "output_reasoning_pico_usd = output_text_pico_usd"
        )
    )
    for rows in _events(connection):
        connection.execute(
            _FILL, [_facts(row.tenant_id, row.event_id, row.payload) for row in rows]
        )
    for table in ("prices", "usage_events"):
        refuse_changes(connection, table)


def _add_columns() -> None:
    op.add_column("prices", sa.Column("tier", sa.Text))
    for name in ("input_cache_write_pico_usd", "output_reasoning_pico_usd"):
        op.add_column("prices", _number(name))
    for name in ("key_id", "tier", "outcome", "usage_source", "gateway_boot_id"):
        column = sa.Column(name, sa.Text, nullable=False, server_default="")
        op.add_column("usage_events", column)
    for name in (
        "input_cache_write_tokens",
        "output_reasoning_tokens",
        "gateway_seq",
        "posted_at_us",
    ):
        op.add_column("usage_events", _number(name))
    op.add_column(
        "usage_events",
        sa.Column("is_recovered", sa.Boolean, nullable=False, server_default=sa.false()),
    )
    op.create_index("usage_events_by_boot", "usage_events", ["gateway_boot_id", "gateway_seq"])


def _number(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=False, server_default="0")


def _events(connection: sa.Connection) -> Iterator[Sequence[sa.Row[Any]]]:
    """By key, so that no result is open while its rows are written."""
    query = sa.text(
        "SELECT tenant_id, event_id, payload FROM usage_events "
        "WHERE (tenant_id, event_id) > (:tenant_id, :event_id) "
        f"ORDER BY tenant_id, event_id LIMIT {_EVENTS_AT_ONCE}"
    )
    after = {"tenant_id": "", "event_id": ""}
    while rows := connection.execute(query, after).all():
        yield rows
        after = {"tenant_id": rows[-1][0], "event_id": rows[-1][1]}


def _facts(tenant_id: str, event_id: str, payload: bytes) -> dict[str, object]:
    event = json.loads(payload)
    facts = {name: event[name] for name in _FIELDS}
    return {**facts, "tenant_id": tenant_id, "event_id": event_id}
