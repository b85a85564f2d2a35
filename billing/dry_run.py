"""What a period would cost under another price book.  Reads the ledger, changes nothing."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from billing.audit_facts import posted_events
from billing.ledger_database import LedgerRef, reading
from billing.periods import Period
from billing.posting import charges_for
from billing.pricing import PriceBook


@dataclass(frozen=True, slots=True)
class Comparison:
    """Of one tenant: what was charged, what would be, and what neither book prices."""

    charged_pico_usd: int = 0
    would_be_pico_usd: int = 0
    num_requests: int = 0
    num_unpriced: int = 0  # under the other book


def dry_run(ledger: LedgerRef, price_book: PriceBook, period: Period) -> Mapping[str, Comparison]:
    """By tenant.  Raises LedgerMissing, LedgerUnavailable."""
    found: dict[str, Comparison] = {}
    for tenant_id, each in _each(ledger, price_book, period):
        before = found.get(tenant_id, Comparison())
        found[tenant_id] = Comparison(
            before.charged_pico_usd + each.charged_pico_usd,
            before.would_be_pico_usd + each.would_be_pico_usd,
            before.num_requests + each.num_requests,
            before.num_unpriced + each.num_unpriced,
        )
    return found


def _each(
    ledger: LedgerRef, price_book: PriceBook, period: Period
) -> Iterator[tuple[str, Comparison]]:
    with reading(ledger) as connection:
        for posted in posted_events(connection, price_book, since=period.begins_at):
            if not period.begins_at <= posted.event.occurred_at < period.ends_at:
                continue  # what is posted in a period may be of an earlier one
            charges = charges_for(posted.event, price_book)
            charged = sum(pico_usd for _, pico_usd, _ in posted.entries.values())
            would_be = sum(charge.pico_usd for charge in charges or ())
            yield posted.event.tenant_id, Comparison(charged, would_be, 1, int(charges is None))
