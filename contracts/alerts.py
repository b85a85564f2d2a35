"""What billing tells an operator: the body of a signed request, and the value of a Kafka record.

Only added to: a receiver ignores fields that it does not know.
"""

from typing import Final

import msgspec

from contracts.usage import Headers, UtcDatetime

_TYPE: Final = "budget.threshold.v1"


class BudgetThreshold(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag=_TYPE):
    """Once for each threshold of a budget in a period; delivered at least once."""

    tenant_id: str
    budget: str  # as the terms call it
    key_id: str | None  # None: all of the tenant's
    period: str  # YYYY-MM-DD or YYYY-MM, UTC
    threshold_percent: int
    spent_usd: str  # exact, so text
    budget_usd: str
    raised_at: UtcDatetime


def encode_alert(alert: BudgetThreshold) -> bytes:
    return msgspec.json.encode(alert)


def alert_headers(alert_id: str, tenant_id: str) -> Headers:
    """Of the Kafka record that bears an alert: CloudEvents 1.0, Kafka binding, binary mode."""
    return [
        ("ce_specversion", b"1.0"),
        ("ce_id", alert_id.encode()),
        ("ce_source", b"/billing"),
        ("ce_type", _TYPE.encode()),
        ("ce_subject", tenant_id.encode()),
        ("content-type", b"application/json"),
    ]
