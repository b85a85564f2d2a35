"""From usage events to a ledger that never counts twice."""
