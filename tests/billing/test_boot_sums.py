"""The sums of gateways' numbers, where billing of a version before them has posted beside."""

from billing.audit import Kind
from billing.auditor import AuditReport, AuditScope, audit
from billing.boot_sums import lacking_sums
from billing.lag import NO_LAG
from billing.ledger import Ledger
from billing.posting import rate_batch
from tests.billing.audited_books import GRACE, NOW
from tests.billing.databases import execute, rows
from tests.billing.test_query_plans import looks_through, statements
from tests.billing.usage_events import BOOK, batch_of, usage

BOOTS = ("0a", "0b", "0c")


def post(ledger: Ledger, first: int, *numbers: int) -> int:
    """Of each boot; returns where the next batch begins."""
    batch = batch_of(
        [
            usage(number, event_id=f"{boot}-{number}", gateway_boot_id=boot, gateway_seq=number)
            for boot in BOOTS
            for number in numbers
        ],
        first=first or None,
    )
    ledger.post(rate_batch(batch, BOOK))
    return batch.next_offset


def forget_sums(ledger_url: str) -> None:
    """As if all until now had been posted by a version that adds nothing to them."""
    execute(ledger_url, "DELETE FROM gateway_boots")


def audit_by_the_hour(ledger_url: str) -> AuditReport:
    scope = AuditScope(
        spool_dir=None,
        lag=lambda: NO_LAG,
        witnesses=list,
        quota=lambda: None,
        since=NOW,
        is_counted=False,
        grace=GRACE,
    )
    return audit(ledger_url, BOOK, scope, now=NOW)


def test_all_that_seems_to_lack_is_looked_for_in_one_statement(
    either: Ledger, either_url: str
) -> None:
    at = post(either, 0, 1, 2)
    forget_sums(either_url)
    post(either, at, 3, 5)
    with statements() as seen:
        findings = audit_by_the_hour(either_url).findings
    details = {(each.kind, each.subject, each.detail) for each in findings}
    assert details == {(Kind.SEQUENCE_GAP, boot, "1 missing: 4 to 4") for boot in BOOTS}
    assert looks_through(either_url, seen).count("usage_events") == 1


def test_sums_that_are_brought_up_to_date_are_those_of_all_events(
    either: Ledger, either_url: str
) -> None:
    at = post(either, 0, 1, 2, 3)
    assert lacking_sums(either_url) == []
    forget_sums(either_url)
    at = post(either, at, 4, 6)
    either.keep_sums(lacking_sums(either_url))
    assert lacking_sums(either_url) == []
    with statements() as seen:
        findings = audit_by_the_hour(either_url).findings
    assert [each.detail for each in findings] == ["1 missing: 5 to 5"] * len(BOOTS)
    assert "usage_events" not in looks_through(either_url, seen)
    post(either, at, 5)
    assert audit_by_the_hour(either_url).findings == []


def test_of_two_counts_at_once_the_later_one_stands(either: Ledger, either_url: str) -> None:
    at = post(either, 0, 1, 2)
    forget_sums(either_url)
    earlier = lacking_sums(either_url)
    at = post(either, at, 3)
    forget_sums(either_url)
    post(either, at, 4)
    later = lacking_sums(either_url)
    for counted in (earlier, later, earlier, later):
        either.keep_sums(counted)
    assert lacking_sums(either_url) == []
    assert sum(row.num_events for row in rows(either_url, "gateway_boots")) == 4 * len(BOOTS)
