"""Names that somebody else wrote stand in tables as they are: no markup, no cursor, no line."""

import io
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest
from rich.console import Console

from billing.audit import Account, Finding, Kind
from billing.auditor import Accounts, AuditReport
from billing.lag import NO_LAG
from billing.pricing import TokenClass
from billing.statement import Statement, StatementAdjustment, StatementLine
from billing.usage_report import Grouping, UsageQuery, UsageRow
from pandal.audit import show_report
from pandal.bill import show_statement
from pandal.screen import as_written
from pandal.usage import show_usage

NAME = "[red]a[/]\x1b[2J"
SHOWN = "[red]a[/]\ufffd[2J"
START = datetime(2026, 11, 1, tzinfo=UTC)


def audited(console: Console) -> None:
    nothing = Account()
    account = Accounts(nothing, nothing, nothing, nothing, nothing, nothing)
    report = AuditReport(
        accounts={NAME: account},
        findings=[Finding(Kind.QUOTA_DIFFERS, NAME, NAME, NAME)],
        missing={}, unsure=frozenset(), lost={}, num_waiting=0, lag=NO_LAG, num_unreadable=0,
        unreadable_segments=[NAME], num_dead_letters=0, num_unpriced=0, num_not_by_gateways=0,
    )  # fmt: skip
    show_report(console, report, [])


def used(console: Console) -> None:
    query = UsageQuery(Grouping.KEY, date(2026, 11, 1), date(2026, 11, 30), NAME)
    row = UsageRow(NAME, 1, 0, {TokenClass.OUTPUT_TEXT: 7}, Decimal("0.1"))
    show_usage(console, query, [row])


def billed(console: Console) -> None:
    one = Decimal(1)
    found = Statement(
        tenant_id=NAME, month="2026-11", time_zone="UTC", period_from=START, period_to=START,
        num_requests=2, num_requests_without_usage=0, num_unpriced_requests=1,
        unpriced_models=(NAME,),
        lines=(StatementLine(NAME, TokenClass.OUTPUT_TEXT, "p.1", one, 7, one),),
        adjustments=(StatementAdjustment("credit", NAME, one),),
        total_usd=one, amount_due_usd=one,
    )  # fmt: skip
    show_statement(console, found)


@pytest.mark.parametrize(
    ("show", "num_names"), [(audited, 5), (used, 2), (billed, 4)], ids=["audit", "usage", "bill"]
)
def test_a_name_is_shown_as_it_was_written(show: Callable[[Console], None], num_names: int) -> None:
    out = io.StringIO()
    show(Console(file=out, width=200, force_terminal=False))
    assert out.getvalue().count(SHOWN) == num_names
    assert "\x1b" not in out.getvalue()


def test_a_line_end_begins_no_line() -> None:
    assert as_written("a\nb").plain == "a\ufffdb"
