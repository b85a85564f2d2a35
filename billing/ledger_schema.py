"""The ledger's tables, and how its SQLite file is opened.

Instants are integer microseconds since 1970 UTC: exact, ordered, and the same in every database.
``usage_events``, ``ledger_entries``, ``prices`` and ``dead_letters`` are append-only: triggers
refuse anything else.
``source_offsets`` says what has been read; ``unpriced_events`` what still waits for a price.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from sqlite3 import Connection as SqliteConnection
from typing import Final

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    ColumnElement,
    Connection,
    Engine,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    LargeBinary,
    MetaData,
    Table,
    Text,
    create_engine,
    event,
    func,
    text,
)
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from billing.errors import LedgerMissing, LedgerUnavailable, RequestInvalid

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_SCHEMA_VERSION: Final = 1
_PICO_USD_PER_MICRO_USD: Final = 10**6
_APPEND_ONLY: Final = ("usage_events", "ledger_entries", "prices", "dead_letters")

LedgerRef = str | Engine
"""A ledger URL, or an engine of ``open_for_reading`` for many reads."""

metadata: Final = MetaData()

prices: Final = Table(
    "prices",
    metadata,
    Column("price_id", Text, primary_key=True),
    Column("model", Text, nullable=False),
    Column("effective_from_us", BigInteger, nullable=False),
    Column("input_uncached_pico_usd", BigInteger, nullable=False),  # per token
    Column("input_cache_read_pico_usd", BigInteger, nullable=False),
    Column("output_text_pico_usd", BigInteger, nullable=False),
)

usage_events: Final = Table(
    "usage_events",
    metadata,
    Column("tenant_id", Text, primary_key=True),
    Column("event_id", Text, primary_key=True),
    Column("request_id", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("occurred_at_us", BigInteger, nullable=False),
    Column("input_uncached_tokens", BigInteger, nullable=False),
    Column("input_cache_read_tokens", BigInteger, nullable=False),
    Column("output_text_tokens", BigInteger, nullable=False),
    Column("source_id", Text, nullable=False),
    Column("source_offset", BigInteger, nullable=False),
    Column("payload", LargeBinary, nullable=False),  # the event as it came
    Index("usage_events_by_request", "request_id"),
    Index("usage_events_by_time", "tenant_id", "occurred_at_us"),
)

ledger_entries: Final = Table(
    "ledger_entries",
    metadata,
    Column("tenant_id", Text, primary_key=True),
    Column("event_id", Text, primary_key=True),
    Column("token_class", Text, primary_key=True),
    Column("occurred_at_us", BigInteger, nullable=False),
    Column("model", Text, nullable=False),
    Column("tokens", BigInteger, CheckConstraint("tokens > 0"), nullable=False),
    Column("pico_usd", BigInteger, CheckConstraint("pico_usd >= 0"), nullable=False),
    Column("price_id", Text, ForeignKey("prices.price_id"), nullable=False),
    ForeignKeyConstraint(
        ["tenant_id", "event_id"], ["usage_events.tenant_id", "usage_events.event_id"]
    ),
    Index("ledger_entries_by_time", "tenant_id", "occurred_at_us"),
)

unpriced_events: Final = Table(
    "unpriced_events",
    metadata,
    Column("tenant_id", Text, primary_key=True),
    Column("event_id", Text, primary_key=True),
    Column("model", Text, nullable=False),
)

source_offsets: Final = Table(
    "source_offsets",
    metadata,
    Column("source_id", Text, primary_key=True),
    Column("next_offset", BigInteger, nullable=False),
)

dead_letters: Final = Table(
    "dead_letters",
    metadata,
    Column("source_id", Text, primary_key=True),
    Column("source_offset", BigInteger, primary_key=True),
    Column("reason", Text, nullable=False),
    Column("detail", Text, nullable=False),
    Column("payload", LargeBinary, nullable=False),
)


def microseconds(instant: datetime) -> int:
    return (instant - _EPOCH) // _MICROSECOND


def instant_from_microseconds(occurred_at_us: int) -> datetime:
    return _EPOCH + occurred_at_us * _MICROSECOND


def open_for_posting(ledger_url: str) -> Engine:
    """Creates the ledger if there is none.  The caller disposes of the engine."""
    url = _sqlite_url(ledger_url)
    _make_private(Path(url.database or ""))
    engine = create_engine(url, connect_args={"timeout": 30})
    event.listen(engine, "connect", _set_up_writer)
    event.listen(engine, "begin", _begin_immediate)
    with translated_errors(), engine.begin() as connection:
        _create(connection)
    return engine


def open_for_reading(ledger_url: str) -> Engine:
    """Read-only, beside a running consumer.  The caller disposes of the engine."""
    path = Path(_sqlite_url(ledger_url).database or "")
    if not path.is_file():
        raise LedgerMissing(f"there is no ledger at {path}")
    engine = create_engine(
        URL.create("sqlite", database=f"file:{path}", query={"mode": "ro", "uri": "true"}),
        connect_args={"timeout": 30},
    )
    event.listen(engine, "connect", _set_up_reader)
    event.listen(engine, "begin", _begin)
    return engine


@contextmanager
def reading(ledger: LedgerRef) -> Iterator[Connection]:
    """One consistent snapshot, and our exceptions.  Raises LedgerMissing while there is none."""
    engine = open_for_reading(ledger) if isinstance(ledger, str) else ledger
    try:
        with translated_errors(), engine.begin() as connection:
            _check_complete(connection)
            yield connection
    finally:
        if isinstance(ledger, str):
            engine.dispose()


@contextmanager
def translated_errors() -> Iterator[None]:
    """SQLAlchemy's exceptions become ours here and nowhere else."""
    try:
        yield
    except SQLAlchemyError as exc:
        raise LedgerUnavailable(
            f"ledger: {type(exc).__name__}: {getattr(exc, 'orig', None)}"
        ) from exc


def sum_pico_usd() -> tuple[ColumnElement[int], ColumnElement[int]]:
    """(sum of whole micro-dollars, sum of the rest), for ``joined_pico_usd``.

    Apart, so that no sum can overflow 64 bits.
    """
    pico_usd = ledger_entries.c.pico_usd
    return (
        func.coalesce(func.sum(pico_usd // _PICO_USD_PER_MICRO_USD), 0),
        func.coalesce(func.sum(pico_usd % _PICO_USD_PER_MICRO_USD), 0),
    )


def joined_pico_usd(micro_usd: int, rest_pico_usd: int) -> int:
    return int(micro_usd) * _PICO_USD_PER_MICRO_USD + int(rest_pico_usd)


def _check_complete(connection: Connection) -> None:
    """Raises LedgerMissing while the first consumer is still making it."""
    if connection.execute(text("PRAGMA user_version")).scalar_one() != _SCHEMA_VERSION:
        raise LedgerMissing(f"expected a ledger of version {_SCHEMA_VERSION}, found none")


def _sqlite_url(ledger_url: str) -> URL:
    """The address is not repeated in errors: it may hold a password."""
    try:
        url = make_url(ledger_url)
    except ArgumentError as exc:
        raise RequestInvalid("expected a ledger URL such as sqlite:////var/lib/ledger.db") from exc
    if url.get_backend_name() != "sqlite" or not url.database or url.database == ":memory:":
        raise RequestInvalid(
            "expected a ledger URL such as sqlite:////var/lib/ledger.db, "
            f"got one of {url.get_backend_name()!r}"
        )
    return url


def _make_private(path: Path) -> None:
    """Who used how much is nobody else's business; SQLite's side files take this file's mode."""
    try:
        path.touch(mode=0o600)
    except OSError as exc:
        raise LedgerUnavailable(f"ledger: {exc}") from exc


def _create(connection: Connection) -> None:
    version = connection.execute(text("PRAGMA user_version")).scalar_one()
    if version not in (0, _SCHEMA_VERSION):
        raise LedgerUnavailable(f"expected a ledger of version {_SCHEMA_VERSION}, got {version}")
    metadata.create_all(connection)
    for table in _APPEND_ONLY:
        for change in ("UPDATE", "DELETE"):
            connection.execute(
                text(
                    f"CREATE TRIGGER IF NOT EXISTS {table}_no_{change.lower()} "
                    f"BEFORE {change} ON {table} "
                    f"BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END"
                )
            )
    connection.execute(text(f"PRAGMA user_version = {_SCHEMA_VERSION}"))


def _set_up_writer(connection: SqliteConnection, _record: object) -> None:
    connection.isolation_level = (
        None  # transactions begin where SQLAlchemy says, not where sqlite3 guesses
    )
    connection.execute(
        "PRAGMA journal_mode = WAL"
    )  # readers and the writer do not wait for each other
    connection.execute("PRAGMA synchronous = FULL")  # a committed offset survives a power cut
    connection.execute("PRAGMA foreign_keys = ON")


def _set_up_reader(connection: SqliteConnection, _record: object) -> None:
    connection.isolation_level = None


def _begin_immediate(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")  # take the write lock before reading the offset


def _begin(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN")
