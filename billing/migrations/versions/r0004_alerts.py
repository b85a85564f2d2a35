"""Alerts and their deliveries; entries without the foreign keys that took a third of a posting."""

import sqlalchemy as sa
from alembic import op

from billing.ledger_upgrade import refuse_changes

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    connection = op.get_bind()
    _rebuild_entries()
    op.drop_index("usage_events_by_boot", table_name="usage_events")
    _create_alerts("alerts", "raised_at_us", sa.Column("document", sa.LargeBinary, nullable=False))
    _create_alerts("alert_deliveries", "delivered_at_us")
    for table in ("ledger_entries", "alerts", "alert_deliveries"):
        refuse_changes(connection, table)


def _rebuild_entries() -> None:
    """SQLite cannot drop a foreign key; the table's triggers and index go with the old one."""
    op.drop_index("ledger_entries_by_time", table_name="ledger_entries")
    op.create_table(
        "ledger_entries_anew",
        sa.Column("tenant_id", sa.Text, primary_key=True),
        sa.Column("event_id", sa.Text, primary_key=True),
        sa.Column("token_class", sa.Text, primary_key=True),
        sa.Column("occurred_at_us", sa.BigInteger, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("tokens", sa.BigInteger, sa.CheckConstraint("tokens > 0"), nullable=False),
        sa.Column("pico_usd", sa.BigInteger, sa.CheckConstraint("pico_usd >= 0"), nullable=False),
        sa.Column("price_id", sa.Text, nullable=False),
        sa.Column("late_after_invoice", sa.BigInteger),
        sqlite_with_rowid=False,
    )
    op.execute("INSERT INTO ledger_entries_anew SELECT * FROM ledger_entries")
    op.drop_table("ledger_entries")
    op.rename_table("ledger_entries_anew", "ledger_entries")
    op.create_index("ledger_entries_by_time", "ledger_entries", ["tenant_id", "occurred_at_us"])


def _create_alerts(table: str, at: str, *more: sa.Column[bytes]) -> None:
    op.create_table(
        table,
        sa.Column("tenant_id", sa.Text, primary_key=True),
        sa.Column("budget", sa.Text, primary_key=True),
        sa.Column("period", sa.Text, primary_key=True),
        sa.Column("threshold_percent", sa.BigInteger, primary_key=True),
        sa.Column(at, sa.BigInteger, nullable=False),
        *more,
    )
