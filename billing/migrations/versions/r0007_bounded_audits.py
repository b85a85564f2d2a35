"""Sums of what an audit asks for by the hour, and fewer indexes for what is posted."""

import sqlalchemy as sa
from alembic import op

from billing.ledger_upgrade import refuse_changes

revision = "0007"
down_revision = "0006"

_MODULUS = 2**31 - 1


def upgrade() -> None:
    """What takes long first: until then readers go on, and nobody posts."""
    if op.get_bind().dialect.name == "postgresql":
        op.execute("LOCK TABLE usage_events, ledger_entries IN SHARE ROW EXCLUSIVE MODE")
    _sum_numbers()
    _copy_entries()
    op.create_index(
        "usage_events_recovered",
        "usage_events",
        ["tenant_id", "occurred_at_us"],
        sqlite_where=sa.text("is_recovered = 1"),
        postgresql_where=sa.text("is_recovered"),
    )
    op.drop_index("usage_events_by_posting", table_name="usage_events")
    op.create_index("usage_events_by_posting", "usage_events", ["posted_at_us"])
    op.drop_index("ledger_entries_by_time", table_name="ledger_entries")
    op.drop_table("ledger_entries")
    op.rename_table("ledger_entries_anew", "ledger_entries")
    refuse_changes(op.get_bind(), "ledger_entries")


def _sum_numbers() -> None:
    op.create_table(
        "gateway_boots",
        sa.Column("gateway_boot_id", sa.Text, primary_key=True),
        sa.Column("source_id", sa.Text, primary_key=True),
        sa.Column("num_events", sa.BigInteger, nullable=False),
        sa.Column("last_number", sa.BigInteger, nullable=False),
        sa.Column("sum_numbers", sa.BigInteger, nullable=False),
        sa.Column("sum_squares", sa.BigInteger, nullable=False),
        sa.Column("first_posted_at_us", sa.BigInteger, nullable=False),
        sa.Column("last_posted_at_us", sa.BigInteger, nullable=False),
    )
    rest = f"(gateway_seq % {_MODULUS})"
    op.execute(
        "INSERT INTO gateway_boots "
        f"SELECT gateway_boot_id, source_id, count(*), max(gateway_seq), sum({rest}), "
        f"sum({rest} * {rest} % {_MODULUS}), min(posted_at_us), max(posted_at_us) "
        "FROM usage_events WHERE NOT is_recovered GROUP BY gateway_boot_id, source_id"
    )


def _copy_entries() -> None:
    """By tenant and time first: one index for statements and for the entries of an event."""
    op.create_table(
        "ledger_entries_anew",
        sa.Column("tenant_id", sa.Text, primary_key=True),
        sa.Column("occurred_at_us", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("event_id", sa.Text, primary_key=True),
        sa.Column("token_class", sa.Text, primary_key=True),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("tokens", sa.BigInteger, sa.CheckConstraint("tokens > 0"), nullable=False),
        sa.Column("pico_usd", sa.BigInteger, sa.CheckConstraint("pico_usd >= 0"), nullable=False),
        sa.Column("price_id", sa.Text, nullable=False),
        sa.Column("late_after_invoice", sa.BigInteger),
        sqlite_with_rowid=False,
    )
    op.execute(
        "INSERT INTO ledger_entries_anew "
        "SELECT tenant_id, occurred_at_us, event_id, token_class, model, tokens, pico_usd, "
        "price_id, late_after_invoice FROM ledger_entries ORDER BY 1, 2, 3, 4"
    )
