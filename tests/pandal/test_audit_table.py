"""The table of accounts says what its numbers are."""

import io
from dataclasses import replace

from rich.console import Console

from billing.auditor import AuditReport
from billing.lag import NO_LAG
from pandal.audit import show_report


def test_column_heads_say_tokens_in_requests() -> None:
    shown = io.StringIO()
    report = AuditReport(
        accounts={},
        findings=(),
        missing={},
        unsure=frozenset(),
        lost={},
        num_waiting=0,
        lag=NO_LAG,
        num_unreadable=0,
        unreadable_segments=(),
        num_dead_letters=0,
        num_unpriced=0,
        num_not_by_gateways=0,
    )
    show_report(Console(file=shown, width=80), report)
    show_report(Console(file=shown, width=80), replace(report, num_young=7))
    assert "served within --grace-s, that may still be billed: 7" in shown.getvalue()
    assert shown.getvalue().count("tokens in") == 12
