"""``pandal doctor`` on the way from an event to money."""

import os
from collections.abc import Collection
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import update

from billing.audit import Account
from billing.auditor import Accounts, AuditReport
from billing.lag import NO_LAG, Lag
from billing.ledger import Ledger
from billing.ledger_database import open_for_posting
from billing.ledger_schema import schema_revision
from billing.ledger_upgrade import REVISION
from billing.price_book_file import read_price_book
from billing.records import EventKey
from pandal.datadir import DataDir
from pandal.doctor.books import (
    billing_findings,
    books_findings,
    ledger_findings,
    spool_findings,
)
from pandal.doctor.finding import Level
from pandal.fleet import BILLING
from pandal.fleet_books import FleetBooks
from pandal.fleet_record import FleetState
from pandal.processes import ProcessId, identify
from tests.gateway.test_spool_reading import DEAD_BOOT, NOW_S, age, write

USED = Account(num_requests=2, num_tokens=70)


def findings(data_dir: DataDir, fleet: FleetState | None = None) -> dict[str, tuple[Level, str]]:
    found = books_findings(FleetBooks(data_dir), fleet)
    return {finding.about: (finding.level, finding.fact) for finding in found}


def make_ledger(data_dir: DataDir) -> None:
    with closing(Ledger(data_dir.ledger_url)) as ledger:
        ledger.record_prices(read_price_book(None))


def fleet_with_billing(data_dir: DataDir, process: ProcessId | None) -> FleetState:
    assert process is not None
    return FleetState(
        launcher=process,
        gateway_url="http://127.0.0.1:1",
        quota_url="unix:///nowhere",
        ledger_url=data_dir.ledger_url,
        policy_file=str(data_dir.policies),
        model="m",
        replica_urls={},
        children={BILLING: process},
    )


def report(
    *,
    engine: Account | None,
    quota: Account | None,
    lag: Lag | None = NO_LAG,
    unsure: Collection[EventKey] = (),
    num_unreadable: int = 0,
) -> AuditReport:
    """Of one tenant, without a difference."""
    none = Account()
    accounts = Accounts(engine, quota, ledger=USED, waiting=none, recovered=none, acknowledged=none)
    return AuditReport(
        accounts={"acme": accounts},
        findings=(),
        missing={},
        unsure=frozenset(unsure),
        lost={},
        num_waiting=0,
        lag=lag,
        num_unreadable=num_unreadable,
        unreadable_segments=(),
        num_dead_letters=0,
        num_unpriced=0,
        num_not_by_gateways=0,
        knows_quota=quota is not None,
    )


def told(report: AuditReport, *, has_quota_store: bool = True) -> list[tuple[Level, str]]:
    not_compared = report.not_compared(has_quota_store=has_quota_store)
    return [(each.level, each.fact) for each in ledger_findings(report, not_compared, REVISION)]


def test_an_empty_ledger_agrees_with_nothing(data_dir: DataDir) -> None:
    make_ledger(data_dir)
    fact = f"revision {REVISION}; no tenant has an account in it yet"
    assert findings(data_dir) == {"ledger": (Level.OK, fact)}


def test_only_what_was_compared_agrees() -> None:
    assert told(report(engine=USED, quota=USED)) == [
        (Level.OK, f"revision {REVISION}; engine, quota, events and ledger of 1 tenant agree")
    ]
    assert told(report(engine=USED, quota=None), has_quota_store=False) == [
        (Level.OK, f"revision {REVISION}; engine, events and ledger of 1 tenant agree"),
    ]
    assert told(report(engine=None, quota=USED, num_unreadable=2)) == [
        (Level.WARNING, "2 lines of the spool cannot be read, and were not compared"),
        (Level.OK, f"revision {REVISION}; quota, events and ledger of 1 tenant agree"),
    ]


def test_who_could_not_be_asked_is_told_and_nothing_agrees() -> None:
    unsure = [("acme", "event-1"), ("acme", "event-2")]
    may_come = "2 requests were served and are not billed: they may still come"
    away = "the quota's totals were not compared: its store is away"
    no_brokers = "Kafka could not be asked for what is on its way: what has come was compared"
    for found, facts in (
        (report(engine=USED, quota=None), [away]),
        (report(engine=USED, quota=USED, unsure=unsure), [may_come]),
        (report(engine=USED, quota=USED, lag=None), [no_brokers]),
        (report(engine=USED, quota=None, lag=None, unsure=unsure), [away, no_brokers, may_come]),
    ):
        assert told(found) == [(Level.WARNING, fact) for fact in facts]


@pytest.mark.parametrize(
    ("lag", "level", "fact"),
    [
        (NO_LAG, Level.OK, "it runs, and has booked all that is written"),
        (Lag({"0": 1200}, {"0": 200}), Level.WARNING, "it runs, and 1000 events wait for it"),
        (None, Level.WARNING, "it runs, and Kafka could not be asked how many wait there"),
    ],
)
def test_events_in_kafka_wait_for_billing_too(
    data_dir: DataDir, lag: Lag | None, level: Level, fact: str
) -> None:
    fleet = fleet_with_billing(data_dir, identify(os.getpid()))
    of_kafka = report(engine=USED, quota=USED, lag=lag)
    (found,) = billing_findings(FleetBooks(data_dir), fleet, of_kafka)
    assert (found.level, found.fact) == (level, fact)


def test_without_a_ledger_nothing_is_known_to_be_booked(data_dir: DataDir) -> None:
    fleet = fleet_with_billing(data_dir, identify(os.getpid()))
    assert findings(data_dir, fleet) == {"billing": (Level.OK, "it runs")}


def test_what_waits_for_billing_is_told(data_dir: DataDir) -> None:
    make_ledger(data_dir)
    write(data_dir.spool, DEAD_BOOT, 0, range(1, 4))
    assert findings(data_dir)["billing"] == (Level.WARNING, "3 events wait for it")


def test_a_ledger_of_another_revision_is_told(data_dir: DataDir) -> None:
    engine = open_for_posting(data_dir.ledger_url)
    with engine.begin() as connection:
        connection.execute(update(schema_revision).values(version_num="0001"))
    engine.dispose()
    level, fact = findings(data_dir)["ledger"]
    assert (level, "0001" in fact) == (Level.WARNING, True)


def test_a_billing_that_died_is_a_failure(data_dir: DataDir) -> None:
    gone = ProcessId(pid=1, start_ticks=0)  # process 1 began later
    make_ledger(data_dir)
    assert findings(data_dir, fleet_with_billing(data_dir, gone))["billing"][0] is Level.FAILURE


def test_the_spool_tells_its_size_and_age(tmp_path: Path) -> None:
    assert list(spool_findings(tmp_path, NOW_S)) == []
    age(write(tmp_path, DEAD_BOOT, 0, range(1, 4)), 600.0)
    age(write(tmp_path, DEAD_BOOT, 1, range(4, 5)), 5.0)
    (found,) = spool_findings(tmp_path, NOW_S)
    assert "segments: 2, the oldest written 10 min ago; " in found.fact
