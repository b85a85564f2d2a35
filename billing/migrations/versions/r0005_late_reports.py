"""What gateways say late of requests that an auditor has posted; what the quota has lost."""

import sqlalchemy as sa
from alembic import op

from billing.ledger_upgrade import refuse_changes

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.create_table(
        "late_reports",
        sa.Column("tenant_id", sa.Text, primary_key=True),
        sa.Column("event_id", sa.Text, primary_key=True),
        sa.Column("gateway_boot_id", sa.Text, nullable=False),
        sa.Column("gateway_seq", sa.BigInteger, nullable=False),
        sa.Column("more_tokens", sa.BigInteger, nullable=False),
        sa.Column("posted_at_us", sa.BigInteger, nullable=False),
        sa.Column("payload", sa.LargeBinary, nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id", "event_id"], ["usage_events.tenant_id", "usage_events.event_id"]
        ),
    )
    op.create_table(
        "quota_acknowledgements",
        sa.Column("tenant_id", sa.Text, primary_key=True),
        sa.Column("lost_before_us", sa.BigInteger, primary_key=True),
        sa.Column("num_requests", sa.BigInteger, nullable=False),
        sa.Column("num_tokens", sa.BigInteger, nullable=False),
        sa.Column("posted_at_us", sa.BigInteger, nullable=False),
    )
    for table in ("late_reports", "quota_acknowledgements"):
        refuse_changes(op.get_bind(), table)
