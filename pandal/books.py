"""What an accountant does to a fleet's ledger: close a month, adjust, replay, compare books."""

from collections.abc import Callable, Mapping
from contextlib import closing
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TypeVar

from billing.dry_run import Comparison, dry_run
from billing.invoice import Invoice, LineKind
from billing.invoicing import Adjustment, Invoicing, issued
from billing.ledger import Ledger, utc_now
from billing.lookup import find_event, totals
from billing.money import pico_usd_from_usd
from billing.periods import month_period
from billing.price_book_file import read_price_book
from billing.replay import Replayed, replay
from billing.terms import read_terms
from contracts.names import tenant_id
from pandal.errors import BadOption, NotFound
from pandal.fleet_books import FleetBooks, translated
from pandal.keys import read_policies

T = TypeVar("T")


def time_zone_of(books: FleetBooks, tenant: str) -> str:
    with translated(books):
        return read_terms(books.data_dir.terms).of(tenant_id(tenant)).time_zone


def check_is_known(books: FleetBooks, tenant: str) -> None:
    """Raises NotFound for a name that nobody has given a key, and that has used nothing."""
    policies = read_policies(books.data_dir.policies)
    if any(policy.tenant_id == tenant for policy in policies.tenants):
        return
    if totals(books.ledger_url, tenant).num_requests == 0:
        raise NotFound(f"unknown tenant {tenant!r}: neither in the policies nor in the ledger")


def close_month(books: FleetBooks, tenant: str, month: str, *, grace_hours: float) -> Invoice:
    """Raises PandalError, having changed nothing."""
    zone = time_zone_of(books, tenant)
    with translated(books):
        check_is_known(books, tenant)
    grace = timedelta(hours=grace_hours)
    return _invoicing(
        books, lambda invoicing: invoicing.close_month(tenant, month, time_zone=zone, grace=grace)
    )


def issued_invoice(books: FleetBooks, tenant: str, month: str) -> bytes:
    with translated(books):
        month_period(month)
        document = issued(books.ledger_url, tenant_id(tenant), month)
    if document is None:
        raise NotFound(f"{month} of {tenant!r} is not closed; 'pandal billing close' does that")
    return document


def adjust(
    books: FleetBooks, tenant: str, *, usd: str, reason: str, name: str, request: str | None
) -> bool:
    """False: it has been posted before.  For a request's instant, or for now."""
    pico_usd = _pico_usd(usd)
    with translated(books):
        check_is_known(books, tenant_id(tenant))
        found = None
        if request is not None:
            found = find_event(books.ledger_url, request_id=request, tenant_id=tenant)
            if found is None:
                raise NotFound(f"the ledger has no request {request!r} of {tenant!r}")
    adjustment = Adjustment(
        tenant_id=tenant,
        adjustment_id=name,
        kind=LineKind.CREDIT if pico_usd < 0 else LineKind.CORRECTION,
        occurred_at=datetime.now(UTC) if found is None else found.occurred_at,
        pico_usd=pico_usd,
        reason=reason,
        event_id=None if found is None else found.event_id,
    )
    return _invoicing(books, lambda invoicing: invoicing.adjust(adjustment))


def replay_dead_letters(books: FleetBooks, price_book: Path | None) -> Replayed:
    with translated(books):
        book = read_price_book(price_book)
        with closing(Ledger(books.existing())) as ledger:
            return replay(ledger, books.ledger_url, book)


def compare_books(books: FleetBooks, book: Path, month: str) -> Mapping[str, Comparison]:
    with translated(books):
        return dry_run(books.ledger_url, read_price_book(book), month_period(month))


def _invoicing(books: FleetBooks, act: Callable[[Invoicing], T]) -> T:
    with translated(books), closing(Invoicing(books.existing(), utc_now)) as invoicing:
        return act(invoicing)


def _pico_usd(usd: str) -> int:
    try:
        return pico_usd_from_usd(Decimal(usd))
    except (InvalidOperation, ArithmeticError, ValueError) as exc:
        raise BadOption(f"--usd: expected an amount such as -5.00, got {usd!r}") from exc
