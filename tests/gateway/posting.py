"""What a ledger of its own makes of events."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

from billing.ledger import Ledger
from billing.lookup import totals
from billing.posting import rate_batch
from billing.pricing import PriceBook, TokenClass
from billing.records import Batch, Record
from contracts.usage import UsageEvent, encode_usage_event


def posted(folder: Path, tenant: str, events: Sequence[UsageEvent]) -> Mapping[TokenClass, int]:
    """What the ledger holds of the tenant when it has these."""
    url = f"sqlite:///{folder / 'ledger.db'}"
    records = [Record(n, encode_usage_event(event)) for n, event in enumerate(events)]
    with closing(Ledger(url)) as ledger:
        ledger.post(rate_batch(Batch("spool/x", None, len(records), records), PriceBook([])))
    return totals(url, tenant).tokens
