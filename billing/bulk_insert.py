"""Many rows at once, the way each database takes them fastest.

SQLite: one prepared statement for all rows.  PostgreSQL: ``COPY``, in the binary format, which
neither side has to read as text.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, TypeVar

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    LargeBinary,
    Select,
    Table,
    Text,
    TextClause,
    select,
    text,
)
from sqlalchemy.types import TypeEngine

from billing.errors import LedgerUnavailable
from billing.ledger_schema import usage_events
from billing.records import EventKey

_KEYS_AT_ONCE: Final = 400  # SQLite before 3.32 takes 999 parameters

Row = tuple[object, ...]  # in the order of the table's columns
T = TypeVar("T")


def insert_rows(connection: Connection, table: Table, rows: Sequence[Row]) -> None:
    if not rows:
        return
    if connection.dialect.name == "postgresql":
        _copy(connection, table, rows)
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


_POSTGRES_TYPES: Final[Mapping[type[TypeEngine[Any]], str]] = {
    Text: "text",
    BigInteger: "int8",
    Boolean: "bool",
    LargeBinary: "bytea",
}


def _copy(connection: Connection, table: Table, rows: Sequence[Row]) -> None:
    columns = ", ".join(table.columns.keys())
    driver: Any = connection.connection.driver_connection  # Any: SQLAlchemy does not say which
    command = f"COPY {table.name} ({columns}) FROM STDIN (FORMAT BINARY)"
    with _translated(connection), driver.cursor() as cursor, cursor.copy(command) as copy:
        copy.set_types([_POSTGRES_TYPES[type(column.type)] for column in table.columns])
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
