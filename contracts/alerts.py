"""What billing tells an operator's webhook, as the body of a signed request.

Only added to: a receiver ignores fields that it does not know.
"""

import msgspec

from contracts.usage import UtcDatetime


class BudgetThreshold(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="budget.threshold.v1"
):
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
