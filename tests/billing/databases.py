"""What an operator, or a fault, does to a ledger of either kind, beside billing."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import NullPool, create_engine, text


def execute(ledger_url: str, sql: str) -> None:
    engine = create_engine(_driver(ledger_url), poolclass=NullPool)
    with engine.begin() as connection:
        connection.execute(text(sql))


def rows(ledger_url: str, table: str) -> Sequence[Any]:  # Any: rows, by name or place
    engine = create_engine(_driver(ledger_url), poolclass=NullPool)
    with engine.connect() as connection:
        return connection.execute(text(f"SELECT * FROM {table}")).all()


def _driver(ledger_url: str) -> str:
    return ledger_url.replace("postgresql://", "postgresql+psycopg://")
