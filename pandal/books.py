"""What an accountant does to a fleet's ledger: close a month, adjust, replay, compare books."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TypeVar

from billing.dry_run import Comparison, dry_run
from billing.errors import (
    BillingError,
    LedgerMissing,
    PriceBookInvalid,
    RequestInvalid,
    TermsInvalid,
)
from billing.invoice import Invoice, LineKind
from billing.invoicing import Adjustment, Invoicing, issued
from billing.ledger import Ledger, utc_now
from billing.lookup import find_event, totals
from billing.money import pico_usd_from_usd
from billing.periods import month_period
from billing.price_book_file import read_price_book
from billing.replay import Replayed, replay
from billing.terms import read_terms
from contracts.errors import ContractError
from contracts.names import tenant_id
from pandal.datadir import DataDir
from pandal.errors import BadOption, NotFound, PandalError
from pandal.keys import read_policies

T = TypeVar("T")


def time_zone_of(data_dir: DataDir, tenant: str) -> str:
    with translated(data_dir):
        return read_terms(data_dir.terms).of(tenant_id(tenant)).time_zone


def check_is_known(data_dir: DataDir, tenant: str) -> None:
    """Raises NotFound for a name that nobody has given a key, and that has used nothing."""
    policies = read_policies(data_dir.policies)
    if any(policy.tenant_id == tenant for policy in policies.tenants):
        return
    if totals(data_dir.ledger_url, tenant).num_requests == 0:
        raise NotFound(f"unknown tenant {tenant!r}: neither in the policies nor in the ledger")


def close_month(data_dir: DataDir, tenant: str, month: str, *, grace_hours: float) -> Invoice:
    """Raises PandalError, having changed nothing."""
    zone = time_zone_of(data_dir, tenant)
    with translated(data_dir):
        check_is_known(data_dir, tenant)
    grace = timedelta(hours=grace_hours)
    return _invoicing(
        data_dir, lambda books: books.close_month(tenant, month, time_zone=zone, grace=grace)
    )


def issued_invoice(data_dir: DataDir, tenant: str, month: str) -> bytes:
    with translated(data_dir):
        month_period(month)
        document = issued(data_dir.ledger_url, tenant_id(tenant), month)
    if document is None:
        raise NotFound(f"{month} of {tenant!r} is not closed; 'pandal billing close' does that")
    return document


def adjust(
    data_dir: DataDir, tenant: str, *, usd: str, reason: str, name: str, request: str | None
) -> bool:
    """False: it has been posted before.  For a request's instant, or for now."""
    pico_usd = _pico_usd(usd)
    with translated(data_dir):
        check_is_known(data_dir, tenant_id(tenant))
        found = None
        if request is not None:
            found = find_event(data_dir.ledger_url, request_id=request, tenant_id=tenant)
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
    return _invoicing(data_dir, lambda books: books.adjust(adjustment))


def replay_dead_letters(data_dir: DataDir, price_book: Path | None) -> Replayed:
    with translated(data_dir):
        book = read_price_book(price_book)
        with closing(Ledger(_existing(data_dir))) as ledger:
            return replay(ledger, data_dir.ledger_url, book)


def compare_books(data_dir: DataDir, book: Path, month: str) -> Mapping[str, Comparison]:
    with translated(data_dir):
        return dry_run(data_dir.ledger_url, read_price_book(book), month_period(month))


@contextmanager
def translated(data_dir: DataDir) -> Iterator[None]:
    """Billing's errors as a command's."""
    try:
        yield
    except LedgerMissing as exc:
        raise NotFound(f"no ledger in {data_dir.root}: no fleet has run there yet") from exc
    except (ContractError, RequestInvalid, PriceBookInvalid, TermsInvalid) as exc:
        raise BadOption(str(exc)) from exc
    except BillingError as exc:
        raise PandalError(str(exc)) from exc


def _invoicing(data_dir: DataDir, act: Callable[[Invoicing], T]) -> T:
    with translated(data_dir), closing(Invoicing(_existing(data_dir), utc_now)) as books:
        return act(books)


def _existing(data_dir: DataDir) -> str:
    """Opening a ledger would make it, and there is none where no fleet has run."""
    if not data_dir.ledger.is_file():
        raise LedgerMissing("there is no ledger")
    return data_dir.ledger_url


def _pico_usd(usd: str) -> int:
    try:
        return pico_usd_from_usd(Decimal(usd))
    except (InvalidOperation, ArithmeticError, ValueError) as exc:
        raise BadOption(f"--usd: expected an amount such as -5.00, got {usd!r}") from exc
