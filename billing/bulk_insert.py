"""Many rows at once, the way each database takes them fastest.

SQLite: one prepared statement for all rows; its writer is alone, so what is new can be looked up
first.  PostgreSQL: ``COPY``, and for rows that may be there already into a staging table, so that
the database decides what is new, also between two consumers.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, TypeVar

from sqlalchemy import Column, Connection, Select, Table, TextClause, select, text

from billing.errors import LedgerUnavailable
from billing.ledger_schema import usage_events
from billing.records import EventKey

_KEYS_AT_ONCE: Final = 400  # SQLite before 3.32 takes 999 parameters
_STAGING: Final = "staged_usage_events"

Row = tuple[object, ...]  # in the order of the table's columns
T = TypeVar("T")


def insert_rows(connection: Connection, table: Table, rows: Sequence[Row]) -> None:
    if not rows:
        return
    if connection.dialect.name == "postgresql":
        _copy(connection, table.name, table, rows)
        return
    columns = ", ".join(table.columns.keys())
    places = ", ".join("?" * len(table.columns))
    connection.exec_driver_sql(
        f"INSERT INTO {table.name} ({columns}) VALUES ({places})", list(rows)
    )


def insert_once(table: Table) -> TextClause:
    """Of one row, by the names of its columns; a row under its key stays as it is."""
    columns = table.columns.keys()
    return text(
        f"INSERT INTO {table.name} ({', '.join(columns)}) "
        f"VALUES ({', '.join(f':{name}' for name in columns)}) ON CONFLICT DO NOTHING"
    )


def insert_new_events(connection: Connection, rows: Sequence[Row]) -> set[EventKey]:
    """Adds those that are not there yet; returns their keys.  ``rows`` differ in their keys.

    Key columns come first in ``usage_events``.
    """
    if not rows:
        return set()
    if connection.dialect.name == "postgresql":
        return _insert_new_staged(connection, rows)
    by_key: dict[EventKey, Row] = {_key(row): row for row in rows}
    for key in known_keys(connection, by_key):
        del by_key[key]
    insert_rows(connection, usage_events, list(by_key.values()))
    return set(by_key)


def known_keys(connection: Connection, keys: Collection[EventKey]) -> set[EventKey]:
    query = select(usage_events.c.tenant_id, usage_events.c.event_id)
    return {(row[0], row[1]) for row in rows_by_key(connection, query, usage_events, keys)}


def rows_by_key(
    connection: Connection, query: Select[Any], table: Table, keys: Collection[EventKey]
) -> Iterator[Any]:  # Any: rows, of whatever the query selects
    """What ``query`` finds of ``table`` under those keys.

    Tenant by tenant: SQLite looks all of a table through for ``(tenant_id, event_id) IN (...)``.
    """
    event_id: Column[str] = table.c.event_id
    for tenant_id, of_tenant in groupby(sorted(set(keys)), key=itemgetter(0)):
        by_tenant = query.where(table.c.tenant_id == tenant_id)
        for some in in_parts([key[1] for key in of_tenant]):
            yield from connection.execute(by_tenant.where(event_id.in_(some)))


def in_parts(keys: Sequence[T]) -> Iterator[Sequence[T]]:
    """Of as many as one statement takes."""
    for start in range(0, len(keys), _KEYS_AT_ONCE):
        yield keys[start : start + _KEYS_AT_ONCE]


def _insert_new_staged(connection: Connection, rows: Sequence[Row]) -> set[EventKey]:
    """In the order of their keys, so that two consumers never wait for each other in a circle."""
    connection.execute(
        text(
            f"CREATE TEMPORARY TABLE IF NOT EXISTS {_STAGING} "
            "(LIKE usage_events INCLUDING DEFAULTS) ON COMMIT DELETE ROWS"
        )
    )
    _copy(connection, _STAGING, usage_events, rows)
    inserted = connection.execute(
        text(
            f"INSERT INTO usage_events SELECT * FROM {_STAGING} ORDER BY tenant_id, event_id "
            "ON CONFLICT DO NOTHING RETURNING tenant_id, event_id"
        )
    )
    return {(row[0], row[1]) for row in inserted.cursor.fetchall()}


def _copy(connection: Connection, target: str, table: Table, rows: Sequence[Row]) -> None:
    columns = ", ".join(table.columns.keys())
    driver: Any = connection.connection.driver_connection  # Any: SQLAlchemy does not say which
    command = f"COPY {target} ({columns}) FROM STDIN"
    with _translated(connection), driver.cursor() as cursor, cursor.copy(command) as copy:
        for row in rows:
            copy.write_row(row)


@contextmanager
def _translated(connection: Connection) -> Iterator[None]:
    """The driver's own exceptions, which SQLAlchemy does not see here."""
    dbapi: Any = connection.dialect.loaded_dbapi  # Any: a module
    try:
        yield
    except dbapi.Error as exc:
        raise LedgerUnavailable(f"ledger: {type(exc).__name__}: {exc}") from exc


def _key(row: Row) -> EventKey:
    tenant_id, event_id = row[:2]
    assert isinstance(tenant_id, str)
    assert isinstance(event_id, str)
    return tenant_id, event_id
