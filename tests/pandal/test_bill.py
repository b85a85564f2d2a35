"""The statement as people read it."""

import io
from datetime import UTC, datetime

import pytest
from rich.console import Console

from billing.ledger import Ledger
from billing.posting import rate_batch
from billing.usage_report import Grouping, UsageQuery
from contracts.usage import Outcome
from pandal.bill import read_statement, show_statement
from pandal.datadir import DataDir
from pandal.fleet_books import FleetBooks
from pandal.usage import read_usage, show_usage
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
    assert "acme, 2026-11 (UTC): 1 request\n" in shown.getvalue()
    assert "refused or failed before any token, not charged: 1" in shown.getvalue()


def test_models_without_a_price_are_named_and_what_they_used_is_not_shown_as_free(
    data_dir: DataDir,
) -> None:
    ledger = Ledger(data_dir.ledger_url)
    ledger.record_prices(BOOK)
    ledger.post(rate_batch(batch_of([usage(1), usage(2, model="new")]), BOOK))
    ledger.close()
    books, shown = FleetBooks(data_dir), io.StringIO()
    console = Console(file=shown, width=100)
    show_statement(console, read_statement(books, "acme", "2026-11", NOW))
    assert "requests not priced yet: 1 (new)" in shown.getvalue()
    assert "BILLING_PRICE_BOOK=FILE" in shown.getvalue()
    query = UsageQuery(Grouping.MODEL, NOW.date().replace(day=1), NOW.date())
    show_usage(console, query, read_usage(books, query))
    assert "1 not priced" in shown.getvalue()
    assert "1 request is not priced yet" in shown.getvalue()
    assert "0.000000000000" not in shown.getvalue()


@pytest.mark.parametrize(
    ("model", "num_cells"), [("smol", 24), ("SmolLM2-135M-Instruct", 17), ("a-name-of-" * 6, 6)]
)
def test_where_a_line_is_short_the_bar_gives_way_before_a_name_is_cut(
    data_dir: DataDir, model: str, num_cells: int
) -> None:
    ledger = Ledger(data_dir.ledger_url)
    ledger.post(rate_batch(batch_of([usage(1, model=model)]), BOOK))
    ledger.close()
    query = UsageQuery(Grouping.MODEL, NOW.date().replace(day=1), NOW.date())
    shown = io.StringIO()
    show_usage(Console(file=shown, width=80), query, read_usage(FleetBooks(data_dir), query))
    lines = shown.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert shown.getvalue().count("█") == num_cells
    assert any(f" {model} " in line for line in lines) is (len(model) < 40)


def test_the_current_month_is_the_tenants_own(data_dir: DataDir) -> None:
    data_dir.terms.write_text("tenants: {acme: {time_zone: Asia/Tokyo}}")
    ledger = Ledger(data_dir.ledger_url)
    ledger.record_prices(BOOK)
    ledger.post(rate_batch(batch_of([usage(1)]), BOOK))
    ledger.close()
    found = read_statement(FleetBooks(data_dir), "acme", None, NOW)
    assert (found.month, found.time_zone) == ("2026-12", "Asia/Tokyo")
