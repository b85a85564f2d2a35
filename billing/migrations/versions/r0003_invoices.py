"""Invoices, adjustments, replays of dead letters, and sums by day."""

import sqlalchemy as sa
from alembic import op

from billing.ledger_upgrade import refuse_changes

revision = "0003"
down_revision = "0002"

_CLASSES = (
    "input_uncached",
    "input_cache_read",
    "input_cache_write",
    "output_text",
    "output_reasoning",
)
_TOKENS = ", ".join(f"{name}_tokens" for name in _CLASSES)
_SUMS = ", ".join(f"SUM({name}_tokens)" for name in _CLASSES)
_DAY = "occurred_at_us / 86400000000"
_FILL_DAYS = (
    f"INSERT INTO daily_usage (tenant_id, day, key_id, model, num_requests, {_TOKENS}, "
    f"micro_usd, rest_pico_usd) SELECT tenant_id, {_DAY}, key_id, model, COUNT(*), {_SUMS}, 0, 0 "
    f"FROM usage_events GROUP BY tenant_id, {_DAY}, key_id, model"
)
_MONEY = (
    "COALESCE((SELECT SUM(n.pico_usd {operator} 1000000) FROM ledger_entries n "
    "JOIN usage_events e ON e.tenant_id = n.tenant_id AND e.event_id = n.event_id "
    "WHERE e.tenant_id = daily_usage.tenant_id AND e.key_id = daily_usage.key_id "
    "AND e.model = daily_usage.model "
    "AND e.occurred_at_us / 86400000000 = daily_usage.day), 0)"
)
_FILL_MONEY = (
    f"UPDATE daily_usage SET micro_usd = {_MONEY.format(operator='/')}, "
    f"rest_pico_usd = {_MONEY.format(operator='%')}"
)


def upgrade() -> None:
    op.add_column("ledger_entries", sa.Column("late_after_invoice", sa.BigInteger))
    _create_replays()
    _create_adjustments()
    _create_invoices()
    op.create_table(
        "daily_usage",
        sa.Column("tenant_id", sa.Text, primary_key=True),
        sa.Column("day", sa.BigInteger, primary_key=True),
        sa.Column("key_id", sa.Text, primary_key=True),
        sa.Column("model", sa.Text, primary_key=True),
        _number("num_requests"),
        *(_number(f"{name}_tokens") for name in _CLASSES),
        _number("micro_usd"),
        _number("rest_pico_usd"),
    )
    connection = op.get_bind()
    for statement in (_FILL_DAYS, _FILL_MONEY):
        connection.execute(sa.text(statement))
    for table in ("dead_letter_replays", "adjustments", "invoices"):
        refuse_changes(connection, table)


def _number(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=False)


def _create_replays() -> None:
    op.create_table(
        "dead_letter_replays",
        sa.Column("source_id", sa.Text, primary_key=True),
        sa.Column("source_offset", sa.BigInteger, primary_key=True),
        _number("replayed_at_us"),
        sa.ForeignKeyConstraint(
            ["source_id", "source_offset"],
            ["dead_letters.source_id", "dead_letters.source_offset"],
        ),
    )


def _create_adjustments() -> None:
    op.create_table(
        "adjustments",
        sa.Column("tenant_id", sa.Text, primary_key=True),
        sa.Column("adjustment_id", sa.Text, primary_key=True),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("event_id", sa.Text),
        _number("occurred_at_us"),
        _number("posted_at_us"),
        _number("pico_usd"),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("late_after_invoice", sa.BigInteger),
        sa.ForeignKeyConstraint(
            ["tenant_id", "event_id"], ["usage_events.tenant_id", "usage_events.event_id"]
        ),
    )


def _create_invoices() -> None:
    op.create_table(
        "invoices",
        sa.Column("tenant_id", sa.Text, primary_key=True),
        sa.Column("number", sa.BigInteger, primary_key=True),
        sa.Column("month", sa.Text, nullable=False),
        sa.Column("time_zone", sa.Text, nullable=False),
        _number("period_from_us"),
        _number("period_to_us"),
        _number("closed_at_us"),
        sa.Column(
            "total_cents", sa.BigInteger, sa.CheckConstraint("total_cents >= 0"), nullable=False
        ),
        _number("carried_pico_usd"),
        sa.Column("document", sa.LargeBinary, nullable=False),
        sa.UniqueConstraint("tenant_id", "month"),
    )
