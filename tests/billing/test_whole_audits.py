"""When an audit of billing's own counts all events, and what becomes of one that cannot."""

from datetime import timedelta

import pytest

from billing.audit import Finding, Kind
from billing.auditor import AuditReport
from billing.errors import LedgerUnavailable
from billing.lag import NO_LAG
from billing.reconciliation import AuditRules
from billing.whole_audits import WholeAudits
from tests.billing.usage_events import NOON

RULES = AuditRules(
    grace=timedelta(0), patience_s=0.0, span=None, is_counted=False, recovers=False
)  # fmt: skip
HOUR = timedelta(hours=1)


def report(*kinds: Kind) -> AuditReport:
    return AuditReport(
        accounts={}, findings=[Finding(kind, "acme", "", "") for kind in kinds], missing={},
        unsure=frozenset(), lost={}, num_waiting=0, lag=NO_LAG, num_unreadable=0,
        unreadable_segments=[], num_dead_letters=0, num_unpriced=0, num_not_by_gateways=0,
    )  # fmt: skip


class Books:
    """What an audit finds, whether it can count, and which audits counted, hour by hour."""

    def __init__(self) -> None:
        self.now = NOON
        self.found: tuple[Kind, ...] = ()
        self.is_countable = True
        self.were_counted: list[bool] = []
        self._whole = WholeAudits(lambda: self.now)

    def reconciled(self, rules: AuditRules) -> AuditReport:
        self.were_counted.append(rules.is_counted)
        if rules.is_counted and not self.is_countable:
            raise LedgerUnavailable("canceling statement due to statement timeout")
        return report(*self.found)

    def look_hourly(self, num_looks: int) -> None:
        for _ in range(num_looks):
            self._whole.compare(RULES, self.reconciled)
            self.now += HOUR


def test_all_is_counted_at_once_and_then_daily() -> None:
    books = Books()
    books.look_hourly(25)
    assert [n for n, was_counted in enumerate(books.were_counted) if was_counted] == [0, 24]


def test_one_that_cannot_count_keeps_no_other_from_its_work() -> None:
    books = Books()
    books.is_countable = False
    books.look_hourly(3)
    assert books.were_counted == [True, False, False, False]
    books.is_countable = True
    books.look_hourly(22)
    assert books.were_counted.count(True) == 2


@pytest.mark.parametrize("kind", [Kind.SUMS_DIFFER, Kind.NUMBERED_TWICE])
def test_what_only_counting_sees_is_counted_until_it_has_ended(kind: Kind) -> None:
    books = Books()
    books.found = (kind,)
    books.look_hourly(2)
    books.found = ()
    books.look_hourly(3)
    assert books.were_counted == [True, True, True, False, False]


def test_what_sums_see_as_well_is_not_counted_again() -> None:
    """A gap that never closes would else have all counted every hour."""
    books = Books()
    books.found = (Kind.SEQUENCE_GAP,)
    books.look_hourly(3)
    assert books.were_counted == [True, False, False]
