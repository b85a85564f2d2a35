"""The statement as people read it."""

import io
from datetime import UTC, datetime

from rich.console import Console

from billing.ledger import Ledger
from billing.posting import rate_batch
from contracts.usage import Outcome
from pandal.bill import read_statement, show_statement
from pandal.datadir import DataDir
from pandal.fleet_books import FleetBooks
from tests.billing.usage_events import BOOK, batch_of, usage

NOW = datetime(2026, 11, 30, 20, tzinfo=UTC)


def test_refused_requests_are_shown_apart_from_those_that_are_charged(data_dir: DataDir) -> None:
    refused = usage(
        2,
        outcome=Outcome.REFUSED,
        input_uncached_tokens=0,
        input_cache_read_tokens=0,
        output_text_tokens=0,
    )
    ledger = Ledger(data_dir.ledger_url)
    ledger.record_prices(BOOK)
    ledger.post(rate_batch(batch_of([usage(1), refused]), BOOK))
    ledger.close()
    shown = io.StringIO()
    found = read_statement(FleetBooks(data_dir), "acme", "2026-11", NOW)
    show_statement(Console(file=shown, width=80), found)
    assert "acme, 2026-11 (UTC): 1 requests" in shown.getvalue()
    assert "refused or failed before any token, not charged: 1" in shown.getvalue()


def test_the_current_month_is_the_tenants_own(data_dir: DataDir) -> None:
    data_dir.terms.write_text("tenants: {acme: {time_zone: Asia/Tokyo}}")
    ledger = Ledger(data_dir.ledger_url)
    ledger.record_prices(BOOK)
    ledger.post(rate_batch(batch_of([usage(1)]), BOOK))
    ledger.close()
    found = read_statement(FleetBooks(data_dir), "acme", None, NOW)
    assert (found.month, found.time_zone) == ("2026-12", "Asia/Tokyo")
