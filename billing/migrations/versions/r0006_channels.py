"""Deliveries of alerts by channel; events by when they were posted."""

import sqlalchemy as sa
from alembic import op

from billing.ledger_upgrade import refuse_changes

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.create_index(
        "usage_events_by_posting", "usage_events", ["posted_at_us", "tenant_id", "event_id"]
    )
    op.create_table(
        "alert_deliveries_anew",  # SQLite cannot widen a primary key
        sa.Column("tenant_id", sa.Text, primary_key=True),
        sa.Column("budget", sa.Text, primary_key=True),
        sa.Column("period", sa.Text, primary_key=True),
        sa.Column("threshold_percent", sa.BigInteger, primary_key=True),
        sa.Column("channel", sa.Text, primary_key=True),
        sa.Column("delivered_at_us", sa.BigInteger, nullable=False),
    )
    for channel in ("webhook", "topic"):  # a delivery was one of both
        op.execute(
            "INSERT INTO alert_deliveries_anew "
            f"SELECT tenant_id, budget, period, threshold_percent, '{channel}', delivered_at_us "
            "FROM alert_deliveries"
        )
    op.drop_table("alert_deliveries")
    op.rename_table("alert_deliveries_anew", "alert_deliveries")
    refuse_changes(op.get_bind(), "alert_deliveries")
