"""The ledger as the first version made it, in SQLite only and without revisions."""

import sqlalchemy as sa
from alembic import op

from billing.ledger_upgrade import refuse_changes

revision = "0001"
down_revision = None


def upgrade() -> None:
    _create_tables()
    for table in ("usage_events", "ledger_entries", "prices", "dead_letters"):
        refuse_changes(op.get_bind(), table)


def _create_tables() -> None:
    op.create_table(
        "prices",
        sa.Column("price_id", sa.Text, primary_key=True),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("effective_from_us", sa.BigInteger, nullable=False),
        sa.Column("input_uncached_pico_usd", sa.BigInteger, nullable=False),
        sa.Column("input_cache_read_pico_usd", sa.BigInteger, nullable=False),
        sa.Column("output_text_pico_usd", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "usage_events",
        sa.Column("tenant_id", sa.Text, primary_key=True),
        sa.Column("event_id", sa.Text, primary_key=True),
        sa.Column("request_id", sa.Text, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("occurred_at_us", sa.BigInteger, nullable=False),
        sa.Column("input_uncached_tokens", sa.BigInteger, nullable=False),
        sa.Column("input_cache_read_tokens", sa.BigInteger, nullable=False),
        sa.Column("output_text_tokens", sa.BigInteger, nullable=False),
        sa.Column("source_id", sa.Text, nullable=False),
        sa.Column("source_offset", sa.BigInteger, nullable=False),
        sa.Column("payload", sa.LargeBinary, nullable=False),
        sa.Index("usage_events_by_request", "request_id"),
        sa.Index("usage_events_by_time", "tenant_id", "occurred_at_us"),
    )
    _create_entries()
    op.create_table(
        "unpriced_events",
        sa.Column("tenant_id", sa.Text, primary_key=True),
        sa.Column("event_id", sa.Text, primary_key=True),
        sa.Column("model", sa.Text, nullable=False),
    )
    op.create_table(
        "source_offsets",
        sa.Column("source_id", sa.Text, primary_key=True),
        sa.Column("next_offset", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "dead_letters",
        sa.Column("source_id", sa.Text, primary_key=True),
        sa.Column("source_offset", sa.BigInteger, primary_key=True),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("detail", sa.Text, nullable=False),
        sa.Column("payload", sa.LargeBinary, nullable=False),
    )


def _create_entries() -> None:
    op.create_table(
        "ledger_entries",
        sa.Column("tenant_id", sa.Text, primary_key=True),
        sa.Column("event_id", sa.Text, primary_key=True),
        sa.Column("token_class", sa.Text, primary_key=True),
        sa.Column("occurred_at_us", sa.BigInteger, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("tokens", sa.BigInteger, sa.CheckConstraint("tokens > 0"), nullable=False),
        sa.Column("pico_usd", sa.BigInteger, sa.CheckConstraint("pico_usd >= 0"), nullable=False),
        sa.Column("price_id", sa.Text, sa.ForeignKey("prices.price_id"), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id", "event_id"], ["usage_events.tenant_id", "usage_events.event_id"]
        ),
        sa.Index("ledger_entries_by_time", "tenant_id", "occurred_at_us"),
    )
