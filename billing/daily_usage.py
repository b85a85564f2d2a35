"""What was used and charged by tenant, UTC day, key and model: kept up with every posting.

In the transaction that posts, so it is never more or less than the events and entries it sums.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
from sqlalchemy import BigInteger, Connection, text

from billing.ledger_schema import daily_usage, day_of, microseconds, split_pico_usd
from billing.pricing import TokenClass
from billing.rating import Charge, tokens_by_class
from contracts.usage import UsageEvent

_KEY: Final = ("tenant_id", "day", "key_id", "model")
_COLUMNS: Final = tuple(daily_usage.columns.keys())
_SUMS: Final = tuple(name for name in _COLUMNS if name not in _KEY)
_INSERT: Final = f"INSERT INTO daily_usage ({', '.join(_COLUMNS)}) "
OR_ADD: Final = f"ON CONFLICT ({', '.join(_KEY)}) DO UPDATE SET " + ", ".join(
    f"{name} = daily_usage.{name} + excluded.{name}" for name in _SUMS
)
_ADD: Final = text(f"{_INSERT} VALUES ({', '.join(f':{name}' for name in _COLUMNS)}) {OR_ADD}")
_ADD_ARRAYS: Final = text(  # one statement for all rows: PostgreSQL takes that far faster
    f"{_INSERT} SELECT * FROM unnest("
    + ", ".join(
        f"CAST(:{column.name} AS {'bigint' if isinstance(column.type, BigInteger) else 'text'}[])"
        for column in daily_usage.columns
    )
    + f") {OR_ADD}"
)

Posted = tuple[UsageEvent, Sequence[Charge]]
_Sums = dict[str, int]


def add_charges(connection: Connection, posted: Iterable[Posted]) -> None:
    """Of events that have been added before, when they had no price."""
    _add(connection, ((event, charges, 0) for event, charges in posted))


def replace_event(connection: Connection, former: Posted, latter: Posted) -> None:
    """One event that has been added before by another, perhaps of another key."""
    event, charges = former
    taken_back = [msgspec.structs.replace(c, pico_usd=-c.pico_usd) for c in charges]
    _add(connection, ((event, taken_back, -1), (*latter, 1)))


def _add(
    connection: Connection, posted: Iterable[tuple[UsageEvent, Sequence[Charge], int]]
) -> None:
    """In the order of their keys, so that two consumers never wait for each other in a circle."""
    sums: dict[tuple[str, int, str, str], _Sums] = {}
    for event, charges, times in posted:
        key = (event.tenant_id, day_of(microseconds(event.occurred_at)), event.key_id, event.model)
        found = sums.get(key)
        if found is None:
            found = sums[key] = dict.fromkeys(_SUMS, 0)
        found["num_requests"] += times
        if times:
            for token_class, tokens in tokens_by_class(event).items():
                found[_TOKENS[token_class]] += times * tokens
        for charge in charges:
            micro_usd, rest = split_pico_usd(charge.pico_usd)
            found["micro_usd"] += micro_usd
            found["rest_pico_usd"] += rest
    if not sums:
        return
    keys = sorted(sums)
    if connection.dialect.name == "postgresql":
        columns = [*zip(*keys, strict=True), *([sums[key][name] for key in keys] for name in _SUMS)]
        arrays = {name: list(values) for name, values in zip(_COLUMNS, columns, strict=True)}
        connection.execute(_ADD_ARRAYS, arrays)
    else:
        rows = [dict(zip(_KEY, key, strict=True)) | sums[key] for key in keys]
        connection.execute(_ADD, rows)


_TOKENS: Final = {c: f"{c.value}_tokens" for c in TokenClass}
