"""Where a ledger lies: refused, made, kept private, brought up to date, left alone."""

import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, inspect

from billing import ledger_upgrade
from billing.alerts import Alert, AlertBook, Channel
from billing.errors import LedgerMigrated, LedgerMissing, LedgerUnavailable, RequestInvalid
from billing.invoice import LineKind
from billing.invoicing import Adjustment, Invoicing
from billing.ledger import Ledger, utc_now
from billing.ledger_database import books_shared, open_for_posting, open_for_reading
from billing.lookup import find_event, totals
from billing.posting import rate_batch
from billing.pricing import TokenClass
from tests.billing.databases import execute, rows
from tests.billing.usage_events import BOOK, NOON, batch_of, usage
from tests.support.postgres import Postgres
from tests.support.waiting import eventually

FIRST_CLASSES = (
    TokenClass.INPUT_UNCACHED,
    TokenClass.INPUT_CACHE_READ,
    TokenClass.OUTPUT_TEXT,
)


def test_an_address_that_is_no_ledger_is_refused_without_repeating_it() -> None:
    for url in ("mysql://me:hunter2@db/ledger", "sqlite://", "not a url:hunter2"):
        with pytest.raises(RequestInvalid) as refused:
            Ledger(url)
        assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("opened", [open_for_posting, open_for_reading])
def test_a_postgresql_that_does_not_answer_is_left_in_the_end(
    postgres: Postgres, opened: Callable[[str], Engine]
) -> None:
    """What the address says itself counts."""
    url = postgres.new_database()
    engine = opened(f"{url}&connect_timeout=33")
    with engine.begin() as connection:
        known: Any = connection.connection.driver_connection
        parameters = known.info.get_parameters()
        limits = [
            connection.exec_driver_sql(f"SHOW {name}").scalar_one()
            for name in ("lock_timeout", "statement_timeout")
        ]
    engine.dispose()
    assert limits == ["1min", "5min"]
    assert (parameters["connect_timeout"], parameters["tcp_user_timeout"]) == ("33", "30000")


def test_a_new_ledger_is_for_its_owner_only(ledger: Ledger, ledger_url: str) -> None:
    ledger.post(rate_batch(batch_of([usage(1)]), BOOK))
    folder = Path(ledger_url.removeprefix("sqlite:///")).parent
    assert {path.stat().st_mode & 0o077 for path in folder.glob("ledger.db*")} == {0}


def test_a_folder_that_is_not_there_is_an_error_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(LedgerUnavailable, match="No such file"):
        Ledger(f"sqlite:///{tmp_path / 'none' / 'ledger.db'}")


def test_a_file_that_is_no_database_is_an_error_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "ledger.db").write_text("not a database, but long enough to be looked at" * 9)
    with pytest.raises(LedgerUnavailable, match="not a database"):
        Ledger(f"sqlite:///{tmp_path / 'ledger.db'}")


def test_a_ledger_of_a_later_version_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(LedgerUnavailable, match="got 99"):
        Ledger(f"sqlite:///{path}")


def test_a_ledger_of_an_unknown_revision_is_left_alone(either_url: str) -> None:
    Ledger(either_url).close()
    execute(either_url, "UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(LedgerUnavailable, match="got 9999"):
        Ledger(either_url)
    with pytest.raises(LedgerMissing, match="found 9999"):
        totals(either_url, "acme")


def test_a_ledger_that_another_version_has_migrated_is_posted_to_no_more(
    either: Ledger, either_url: str
) -> None:
    credit = Adjustment("acme", "c1", LineKind.CREDIT, NOON, -1, "an outage")
    alert = Alert("acme", "all", "2026-11", 50, b"{}")
    with ExitStack() as stack:
        invoicing = stack.enter_context(closing(Invoicing(either_url, utc_now)))
        alerts = stack.enter_context(closing(AlertBook(either_url, utc_now)))
        execute(either_url, "UPDATE alembic_version SET version_num = '9999'")
        for write in (
            lambda: either.post(rate_batch(batch_of([usage(1)]), BOOK)),
            lambda: either.record_prices(BOOK),
            lambda: either.mark_replayed([("s", 1)]),
            lambda: either.post_unpriced(BOOK),
            lambda: invoicing.close_month("acme", "2026-10", time_zone="UTC"),
            lambda: invoicing.adjust(credit),
            lambda: alerts.mark_delivered(alert, Channel.WEBHOOK),
        ):
            with pytest.raises(LedgerMigrated, match="found 9999"):
                write()
    written = (
        "usage_events source_offsets dead_letter_replays invoices adjustments alert_deliveries"
    )
    for table in written.split():
        assert rows(either_url, table) == []


def test_a_migration_waits_for_who_has_seen_the_revision_before(
    postgres: Postgres,
) -> None:
    url = postgres.new_database()
    _migrate(url, to="0006")
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    with ThreadPoolExecutor(1) as beside:
        with engine.begin() as posting:
            books_shared(posting)
            migrating = beside.submit(open_for_posting, url)
            waits = lambda: any(not lock.granted for lock in rows(url, "pg_locks"))  # noqa: E731
            eventually(waits, "the migration did not wait")
            assert rows(url, "alembic_version")[0].version_num == "0006"
        migrating.result().dispose()
    engine.dispose()
    with closing(Ledger(url)) as ledger:
        assert ledger.post(rate_batch(batch_of([usage(1)]), BOOK)).num_posted == 1


def test_a_database_without_a_ledger_is_one_that_is_missing(either_url: str) -> None:
    execute(either_url, "CREATE TABLE other (id INTEGER)")
    with pytest.raises(LedgerMissing):
        totals(either_url, "acme")


def test_a_reader_cannot_write(either: Ledger, either_url: str) -> None:
    engine = open_for_reading(either_url)
    with engine.connect() as connection, pytest.raises(Exception, match=r"read-?only"):
        connection.exec_driver_sql("DELETE FROM source_offsets")
    engine.dispose()


def test_the_migrations_make_what_a_new_ledger_is(either_url: str, migrated_url: str) -> None:
    open_for_posting(either_url).dispose()
    open_for_posting(migrated_url).dispose()
    assert _shape(migrated_url) == _shape(either_url)


def test_a_ledger_of_the_first_shape_is_brought_up_to_date_with_all_it_holds(
    first_shape: str,
) -> None:
    with pytest.raises(LedgerMissing):
        totals(first_shape, "acme")
    ledger = Ledger(first_shape)
    ledger.record_prices(BOOK)
    result = ledger.post(rate_batch(batch_of([usage(1), usage(2)], first=1), BOOK))
    ledger.close()
    assert (result.num_posted, result.num_repeated) == (1, 1)
    assert totals(first_shape, "acme").num_requests == 2
    assert find_event(first_shape, request_id="request-1") is not None
    event, later = sorted(rows(first_shape, "usage_events"), key=lambda row: row.event_id)
    assert (event.key_id, event.tier, event.outcome) == ("key-1", "standard", "completed")
    assert (event.gateway_boot_id, event.gateway_seq) == ("0a", 1)
    assert event.posted_at_us == event.occurred_at_us
    assert later.posted_at_us > 0
    (day,) = rows(first_shape, "daily_usage")
    assert (day.num_requests, day.output_text_tokens) == (2, 14)
    assert day.micro_usd * 10**6 + day.rest_pico_usd == totals(first_shape, "acme").pico_usd
    with pytest.raises(Exception, match="append-only"):
        execute(first_shape, "DELETE FROM usage_events")


def test_an_alert_told_before_channels_were_known_is_told_to_none_of_them_again(
    migrated_url: str,
) -> None:
    """A delivery was one to all."""
    _migrate(migrated_url, to="0005")
    alert = "('acme', 'month', '2026-11', 50, 1"
    execute(migrated_url, f"INSERT INTO alerts VALUES {alert}, '')")
    execute(migrated_url, f"INSERT INTO alert_deliveries VALUES {alert})")
    book = AlertBook(migrated_url, utc_now)
    assert [book.pending(channel) for channel in Channel] == [[], []]
    book.close()
    with pytest.raises(Exception, match="append-only"):
        execute(migrated_url, "DELETE FROM alert_deliveries")


def test_what_was_posted_before_there_were_sums_is_in_them(migrated_url: str) -> None:
    _migrate(migrated_url, to="0006")
    for number, is_recovered in ((1, "false"), (2**31, "false"), (9, "true")):
        execute(
            migrated_url,
            "INSERT INTO usage_events (tenant_id, event_id, request_id, model, occurred_at_us, "
            "input_uncached_tokens, input_cache_read_tokens, output_text_tokens, source_id, "
            "source_offset, payload, gateway_boot_id, gateway_seq, is_recovered, posted_at_us) "
            f"VALUES ('acme', 'event-{number}', 'request', 'm', 5, 36, 64, 7, 's', {number}, '', "
            f"'0a', {number}, {is_recovered}, {number + 10})",
        )
    entry = ("acme", "event-1", "output_text", 5, "m", 7, 70, "m.1")
    execute(
        migrated_url, f"INSERT INTO ledger_entries VALUES ({', '.join(map(repr, entry))}, NULL)"
    )
    open_for_posting(migrated_url).dispose()
    (boot,) = rows(migrated_url, "gateway_boots")
    # 2**31 is 1 more than the modulus
    assert tuple(boot) == ("0a", "s", 2, 2**31, 1 + 1, 1 + 1, 11, 2**31 + 10)
    (kept,) = rows(migrated_url, "ledger_entries")
    assert tuple(kept) == ("acme", 5, "event-1", "output_text", "m", 7, 70, "m.1", None)
    with pytest.raises(Exception, match="append-only"):
        execute(migrated_url, "DELETE FROM ledger_entries")


@pytest.fixture
def migrated_url(either_url: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of a database like ``either_url``'s, where a ledger of the first revision lies."""
    if either_url.startswith("postgresql"):
        url: str = request.getfixturevalue("postgres").new_database()
    else:
        url = f"sqlite:///{tmp_path / 'migrated.db'}"
    _migrate(url, to="0001")
    return url


@pytest.fixture
def first_shape(tmp_path: Path) -> str:
    """As the first version left it: no revision, one event, and the price it was rated at."""
    url = f"sqlite:///{tmp_path / 'first.db'}"
    _migrate(url, to="0001")
    batch = batch_of([usage(1)])
    (posting,) = rate_batch(batch, BOOK).postings
    model, at_us = posting.event.model, 1_795_953_600_000_000
    place = (batch.source_id, 0, posting.payload)
    rates = [BOOK.prices[0].pico_usd_per_token[c] for c in FIRST_CLASSES]
    connection = sqlite3.connect(url.removeprefix("sqlite:///"))
    with connection:
        connection.execute("DROP TABLE alembic_version")
        connection.execute("PRAGMA user_version = 1")
        _insert(connection, "prices", "smol.1", model, 1_767_225_600_000_000, *rates)
        _insert(
            connection,
            "usage_events",
            "acme",
            "event-1",
            "request-1",
            model,
            at_us,
            36,
            64,
            7,
            *place,
        )
        for charge in posting.charges or ():
            entry = ("acme", "event-1", charge.token_class.value, at_us, model)
            money = (charge.tokens, charge.pico_usd, charge.price_id)
            _insert(connection, "ledger_entries", *entry, *money)
        _insert(connection, "source_offsets", batch.source_id, 1)
    connection.close()
    return url


def _insert(connection: sqlite3.Connection, table: str, *values: object) -> None:
    connection.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(values))})", values)


def _migrate(url: str, *, to: str) -> None:
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.begin() as connection:
        ledger_upgrade.migrate(connection, to=to)
    engine.dispose()


def _shape(url: str) -> dict[str, Any]:  # Any: what SQLAlchemy finds out about a database
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    found = inspect(engine)
    shape = {
        table: {
            "columns": sorted(
                (c["name"], str(c["type"]), c["nullable"], c["default"])
                for c in found.get_columns(table)
            ),
            "key": found.get_pk_constraint(table)["constrained_columns"],
            "indexes": sorted(
                (str(i["name"]), i["column_names"]) for i in found.get_indexes(table)
            ),
            "references": sorted(
                (f["constrained_columns"], f["referred_table"])
                for f in found.get_foreign_keys(table)
            ),
            "checks": sorted(str(c["sqltext"]) for c in found.get_check_constraints(table)),
            "triggers": _triggers(engine, table),
        }
        for table in found.get_table_names()
    }
    engine.dispose()
    return shape


def _triggers(engine: Engine, table: str) -> list[str]:
    query = (
        f"SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name = '{table}'"
        if engine.dialect.name == "sqlite"
        else "SELECT tgname FROM pg_trigger "
        f"WHERE tgrelid = '{table}'::regclass AND NOT tgisinternal"
    )
    with engine.connect() as connection:
        return sorted(connection.exec_driver_sql(query).scalars())
