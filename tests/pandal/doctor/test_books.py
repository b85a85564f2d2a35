"""``pandal doctor`` on the way from an event to money."""

from contextlib import closing
from pathlib import Path

from sqlalchemy import update

from billing.ledger import Ledger
from billing.ledger_database import open_for_posting
from billing.ledger_schema import schema_revision
from billing.ledger_upgrade import REVISION
from billing.price_book_file import read_price_book
from pandal.datadir import DataDir
from pandal.doctor.books import books_findings, spool_findings
from pandal.doctor.finding import Level
from pandal.fleet import BILLING
from pandal.fleet_books import FleetBooks
from pandal.fleet_record import FleetState
from pandal.processes import ProcessId
from tests.gateway.test_spool_reading import DEAD_BOOT, NOW_S, age, write


def findings(data_dir: DataDir, fleet: FleetState | None = None) -> dict[str, tuple[Level, str]]:
    found = books_findings(FleetBooks(data_dir), fleet)
    return {finding.about: (finding.level, finding.fact) for finding in found}


def make_ledger(data_dir: DataDir) -> None:
    with closing(Ledger(data_dir.ledger_url)) as ledger:
        ledger.record_prices(read_price_book(None))


def test_a_ledger_at_head_that_agrees_is_fine(data_dir: DataDir) -> None:
    make_ledger(data_dir)
    found = findings(data_dir)
    assert found == {
        "ledger": (
            Level.OK,
            f"revision {REVISION}; engine, quota, events and ledger of 0 tenants agree",
        )
    }


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
    fleet = FleetState(
        launcher=gone,
        gateway_url="http://127.0.0.1:1",
        quota_url="unix:///nowhere",
        ledger_url=data_dir.ledger_url,
        policy_file=str(data_dir.policies),
        model="m",
        replica_urls={},
        children={BILLING: gone},
    )
    make_ledger(data_dir)
    assert findings(data_dir, fleet)["billing"][0] is Level.FAILURE


def test_the_spool_tells_its_size_and_age(tmp_path: Path) -> None:
    assert list(spool_findings(tmp_path, NOW_S)) == []
    age(write(tmp_path, DEAD_BOOT, 0, range(1, 4)), 600.0)
    age(write(tmp_path, DEAD_BOOT, 1, range(4, 5)), 5.0)
    (found,) = spool_findings(tmp_path, NOW_S)
    assert "segments: 2, the oldest written 10 min ago; " in found.fact
