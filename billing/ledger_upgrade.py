"""A ledger's way to this version: made at once where there is none, else migrated step by step.

A new ledger is made from the tables as they are now, which needs no Alembic and so no third of a
second at each first start; a test holds it equal to one that went through every migration.
Everything happens in the caller's transaction: killed in between, nothing has changed.
"""

from typing import Final

from sqlalchemy import Connection, insert, inspect, select, text

from billing.errors import LedgerUnavailable
from billing.ledger_schema import APPEND_ONLY, metadata, schema_revision

REVISION: Final = "0007"
_FIRST_REVISION: Final = "0001"
_EARLIER_REVISIONS: Final = (_FIRST_REVISION, "0002", "0003", "0004", "0005", "0006")
_SQLITE_VERSION: Final = 2  # keeps programs that know only the first shape from writing to it


def create_or_upgrade(connection: Connection) -> None:
    """Raises LedgerUnavailable for a ledger of a later version, which is left alone."""
    found = stored_revision(connection)
    if found == REVISION:
        return
    if found is None:
        metadata.create_all(connection)
        for table in APPEND_ONLY:
            refuse_changes(connection, table)
        stamp(connection, REVISION)
    elif found in _EARLIER_REVISIONS:
        if not inspect(connection).has_table(schema_revision.name):
            schema_revision.create(connection)
            stamp(connection, found)
        migrate(connection, to=REVISION)
    else:
        raise LedgerUnavailable(f"expected a ledger of revision {REVISION}, got {found}")
    if connection.dialect.name == "sqlite":
        connection.execute(text(f"PRAGMA user_version = {_SQLITE_VERSION}"))


def migrate(connection: Connection, *, to: str) -> None:
    """Step by step from where it stands, or from nothing."""
    # Only an upgrade needs it, and it is slow to import.
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", "billing:migrations")
    config.attributes["connection"] = connection
    command.upgrade(config, to)


def stored_revision(connection: Connection) -> str | None:
    """None: there is no ledger.  The first ones, of SQLite, knew no revisions."""
    if inspect(connection).has_table(schema_revision.name):
        revision: str | None
        revision = connection.execute(select(schema_revision.c.version_num)).scalar_one_or_none()
        return revision
    if connection.dialect.name != "sqlite":
        return None
    version = connection.execute(text("PRAGMA user_version")).scalar_one()
    if version in (0, 1):
        return _FIRST_REVISION if version == 1 else None
    raise LedgerUnavailable(f"expected a ledger of version {_SQLITE_VERSION}, got {version}")


def stamp(connection: Connection, revision: str) -> None:
    connection.execute(insert(schema_revision), {"version_num": revision})


def refuse_changes(connection: Connection, table: str) -> None:
    """From now on rows of ``table`` can be added, and nothing else."""
    for change in ("UPDATE", "DELETE"):
        name = f"{table}_no_{change.lower()}"
        if connection.dialect.name == "sqlite":
            connection.execute(
                text(
                    f"CREATE TRIGGER {name} BEFORE {change} ON {table} "
                    f"BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END"
                )
            )
            continue
        connection.execute(text(_REFUSE_IN_POSTGRES))
        connection.execute(
            text(
                f"CREATE TRIGGER {name} BEFORE {change} ON {table} "
                "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
            )
        )


def allow_changes(connection: Connection, table: str) -> None:
    """For a migration that fills in a new column."""
    suffix = "" if connection.dialect.name == "sqlite" else f" ON {table}"
    for change in ("update", "delete"):
        connection.execute(text(f"DROP TRIGGER {table}_no_{change}{suffix}"))


_REFUSE_IN_POSTGRES: Final = """
CREATE OR REPLACE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION '% is append-only', TG_TABLE_NAME USING ERRCODE = '23514'; END $$
"""
