"""How the ledger's database is opened: an SQLite file, or a PostgreSQL database, by its URL.

What differs between the two is here, in ``ledger_upgrade`` and in ``bulk_insert``.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from sqlite3 import Connection as SqliteConnection
from typing import Any, Final

from sqlalchemy import Connection, Engine, create_engine, event, inspect, select, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

from billing.errors import LedgerMigrated, LedgerMissing, LedgerUnavailable, RequestInvalid
from billing.ledger_schema import schema_revision
from billing.ledger_upgrade import REVISION, create_or_upgrade, stored_revision

_EXAMPLES: Final = "sqlite:////var/lib/ledger.db or postgresql://billing@db/ledger"
_SETUP_LOCK: Final = 0x70616E64616C  # of this application, in PostgreSQL's advisory locks
_BOOKS_LOCK: Final = _SETUP_LOCK + 1
_BUSY_S: Final = 30  # how long SQLite waits for another process's transaction
_REACHED_WITHIN: Final = {"connect_timeout": 10, "tcp_user_timeout": 30_000}  # libpq: s, ms
_DEADLINES: Final = "SET lock_timeout = '60s'; SET statement_timeout = '300s'"
_NO_DEADLINES: Final = "SET LOCAL lock_timeout = 0; SET LOCAL statement_timeout = 0"

LedgerRef = str | Engine
"""A ledger URL, or an engine of ``open_for_reading`` for many reads."""


def open_for_posting(ledger_url: str) -> Engine:
    """Creates the ledger, or brings it up to date.  The caller disposes of the engine."""
    url = _url(ledger_url)
    if url.get_backend_name() == "sqlite":
        _make_private(Path(url.database or ""))
        engine = create_engine(url, connect_args={"timeout": _BUSY_S})
        event.listen(engine, "connect", _set_up_writer)
        event.listen(engine, "begin", _begin_immediate)
    else:
        engine = _postgres(url)
    try:
        with translated_errors(), engine.begin() as connection:
            _without_deadlines(connection)  # a long ledger takes long to upgrade
            alone(connection)
            if stored_revision(connection) != REVISION:
                books_alone(connection)  # who posts has seen the revision that it posts to
            create_or_upgrade(connection)
    except BaseException:
        engine.dispose()
        raise
    return engine


def open_for_reading(ledger_url: str) -> Engine:
    """Read-only, beside a running consumer.  The caller disposes of the engine."""
    url = _url(ledger_url)
    if url.get_backend_name() != "sqlite":
        engine = _postgres(url, isolation_level="REPEATABLE READ")
        event.listen(engine, "begin", _begin_read_only)
        return engine
    path = Path(url.database or "")
    if not path.is_file():
        raise LedgerMissing(f"there is no ledger at {path}")
    engine = create_engine(
        URL.create("sqlite", database=f"file:{path}", query={"mode": "ro", "uri": "true"}),
        connect_args={"timeout": _BUSY_S},
    )
    event.listen(engine, "connect", _set_up_reader)
    event.listen(engine, "begin", _begin)
    return engine


@contextmanager
def reading(ledger: LedgerRef, *, takes_long: bool = False) -> Iterator[Connection]:
    """One consistent snapshot, and our exceptions.  Raises LedgerMissing while there is none.

    ``takes_long``: as long as the ledger is, so that no statement has a deadline.
    """
    engine = open_for_reading(ledger) if isinstance(ledger, str) else ledger
    try:
        with translated_errors(), engine.begin() as connection:
            if takes_long:
                _without_deadlines(connection)
            _check_complete(connection)
            yield connection
    finally:
        if isinstance(ledger, str):
            engine.dispose()


@contextmanager
def writing(engine: Engine, lock: Callable[[Connection], None]) -> Iterator[Connection]:
    """One transaction behind a lock of the books, in a ledger of this version.

    Nobody migrates it meanwhile.  Raises LedgerMigrated, having changed nothing.
    """
    with translated_errors(), engine.begin() as connection:
        lock(connection)
        found = connection.execute(select(schema_revision.c.version_num)).scalar_one_or_none()
        if found != REVISION:
            raise LedgerMigrated(
                f"ledger: expected revision {REVISION}, found {found}: another version of billing "
                "has made it its own, and this one posts no more"
            )
        yield connection


@contextmanager
def translated_errors() -> Iterator[None]:
    """SQLAlchemy's exceptions become ours here and nowhere else."""
    try:
        yield
    except SQLAlchemyError as exc:
        raise LedgerUnavailable(
            f"ledger: {type(exc).__name__}: {getattr(exc, 'orig', None)}"
        ) from exc


def alone(connection: Connection) -> None:
    """Until this transaction ends, for what only one process may do at a time.

    SQLite's transactions that write are alone as it is.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _SETUP_LOCK})


def books_shared(connection: Connection) -> None:
    """Until this transaction ends no month is closed: what it posts is in time, or is late."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock_shared(:key)"), {"key": _BOOKS_LOCK})


def books_alone(connection: Connection) -> None:
    """Until this transaction ends nobody else posts.  To be taken first, and never after shared."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _BOOKS_LOCK})


def _without_deadlines(connection: Connection) -> None:
    """Until this transaction ends."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(_NO_DEADLINES)


def _check_complete(connection: Connection) -> None:
    """Raises LedgerMissing until billing has made it, or brought it up to date."""
    if not inspect(connection).has_table(schema_revision.name):
        raise LedgerMissing("there is no ledger of this version yet: billing makes it")
    found = connection.execute(select(schema_revision.c.version_num)).scalar_one_or_none()
    if found != REVISION:
        raise LedgerMissing(f"expected a ledger of revision {REVISION}, found {found}")


def _url(ledger_url: str) -> URL:
    """The address is not repeated in errors: it may hold a password."""
    try:
        url = make_url(ledger_url)
        backend = url.get_backend_name()
    except (ArgumentError, NoSuchModuleError) as exc:
        raise RequestInvalid(f"expected a ledger URL such as {_EXAMPLES}") from exc
    if backend == "postgresql" and find_spec("psycopg") is None:
        raise RequestInvalid("a ledger in PostgreSQL needs psycopg: pip install 'pandal[postgres]'")
    if backend == "postgresql" and url.drivername == "postgresql":
        return url.set(drivername="postgresql+psycopg")
    is_file = backend == "sqlite" and url.database and url.database != ":memory:"
    if not is_file and url.drivername != "postgresql+psycopg":
        raise RequestInvalid(f"expected a ledger URL such as {_EXAMPLES}, got one of {backend!r}")
    return url


def _postgres(url: URL, **options: Any) -> Engine:  # Any: what SQLAlchemy takes
    """Whatever does not answer is an error in the end.  What the URL says itself counts."""
    deadlines = {k: v for k, v in _REACHED_WITHIN.items() if k not in url.query}
    engine = create_engine(url, pool_pre_ping=True, connect_args=deadlines, **options)
    event.listen(engine, "connect", _set_deadlines)
    return engine


def _make_private(path: Path) -> None:
    """Who used how much is nobody else's business; SQLite's side files take this file's mode."""
    try:
        path.touch(mode=0o600)
    except OSError as exc:
        raise LedgerUnavailable(f"ledger: {exc}") from exc


def _set_deadlines(connection: Any, _record: object) -> None:  # Any: the driver's
    connection.execute(_DEADLINES)
    connection.commit()


def _set_up_writer(connection: SqliteConnection, _record: object) -> None:
    connection.isolation_level = (
        None  # transactions begin where SQLAlchemy says, not where sqlite3 guesses
    )
    connection.execute(
        "PRAGMA journal_mode = WAL"
    )  # readers and the writer do not wait for each other
    connection.execute("PRAGMA synchronous = FULL")  # a committed offset survives a power cut
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute(
        "PRAGMA temp_store = MEMORY"
    )  # what is staged is on no disk: it stays until the next batch


def _set_up_reader(connection: SqliteConnection, _record: object) -> None:
    connection.isolation_level = None


def _begin_immediate(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")  # take the write lock before reading the offset


def _begin(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN")


def _begin_read_only(connection: Connection) -> None:
    connection.exec_driver_sql("SET TRANSACTION READ ONLY")
