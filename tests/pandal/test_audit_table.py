"""The table of accounts says what its numbers are; the status, what was found of how much."""

import io
from collections.abc import Mapping
from dataclasses import replace

import pytest
from rich.console import Console

from billing.audit import Finding, Kind
from billing.auditor import AuditReport
from billing.lag import NO_LAG
from pandal.audit import show_report, status_of

AGREEING = AuditReport(
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
DIFFERENCE = Finding(Kind.MISPRICED, "acme", "event-1", "expected nothing")


def test_column_heads_say_tokens_in_requests() -> None:
    shown = io.StringIO()
    show_report(Console(file=shown, width=80), AGREEING, [])
    show_report(Console(file=shown, width=80), replace(AGREEING, num_young=7), [])
    assert "served within --grace-s, that may still be billed: 7" in shown.getvalue()
    assert shown.getvalue().count("tokens in") == 12


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({}, 0),
        ({"lag": None}, 3),
        ({"knows_quota": False}, 3),
        ({"unreadable_segments": ["one"]}, 3),
        ({"findings": [DIFFERENCE]}, 1),
        ({"findings": [DIFFERENCE], "lag": None}, 1),
        ({"findings": [DIFFERENCE], "unreadable_segments": ["one"]}, 3),
    ],
    ids=str,
)
def test_who_could_not_be_asked_is_no_agreement(changes: Mapping[str, object], status: int) -> None:
    report = replace(AGREEING, **changes)
    assert status_of(report, report.not_compared(has_quota_store=True)) == status


def test_a_quotas_store_that_nobody_has_named_is_not_missed() -> None:
    report = replace(AGREEING, knows_quota=False)
    assert report.not_compared(has_quota_store=False) == []
