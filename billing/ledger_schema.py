"""The ledger's tables, the same in SQLite and PostgreSQL.

Instants are integer microseconds since 1970 UTC: exact, ordered, and the same in every database.
The tables of ``APPEND_ONLY`` are that: triggers refuse anything else.
``source_offsets`` says what has been read; ``unpriced_events`` what still waits for a price;
``daily_usage`` sums events and entries as they are posted, ``gateway_boots`` their numbers.
A change here needs a migration beside it: a test compares what both make.
"""

from datetime import UTC, datetime, timedelta
from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ColumnElement,
    ForeignKeyConstraint,
    Index,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    false,
    func,
    select,
    text,
)

from billing.pricing import TokenClass

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
PICO_USD_PER_MICRO_USD: Final = 10**6
US_PER_DAY: Final = 86_400_000_000

APPEND_ONLY: Final = (
    "usage_events",
    "ledger_entries",
    "prices",
    "dead_letters",
    "dead_letter_replays",
    "adjustments",
    "invoices",
    "alerts",
    "alert_deliveries",
    "late_reports",
    "quota_acknowledgements",
)

metadata: Final = MetaData()

schema_revision: Final = Table(  # Alembic's own, by the name and shape that it looks for
    "alembic_version", metadata, Column("version_num", String(32), primary_key=True)
)

prices: Final = Table(
    "prices",
    metadata,
    Column("price_id", Text, primary_key=True),
    Column("model", Text, nullable=False),
    Column("effective_from_us", BigInteger, nullable=False),
    Column("input_uncached_pico_usd", BigInteger, nullable=False),  # per token
    Column("input_cache_read_pico_usd", BigInteger, nullable=False),
    Column("output_text_pico_usd", BigInteger, nullable=False),
    Column("tier", Text),  # None: of every tier that has none of its own
    Column("input_cache_write_pico_usd", BigInteger, nullable=False, server_default="0"),
    Column("output_reasoning_pico_usd", BigInteger, nullable=False, server_default="0"),
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
    Column("key_id", Text, nullable=False, server_default=""),
    Column("tier", Text, nullable=False, server_default=""),
    Column("outcome", Text, nullable=False, server_default=""),
    Column("usage_source", Text, nullable=False, server_default=""),
    Column("input_cache_write_tokens", BigInteger, nullable=False, server_default="0"),
    Column("output_reasoning_tokens", BigInteger, nullable=False, server_default="0"),
    Column("gateway_boot_id", Text, nullable=False, server_default=""),
    Column("gateway_seq", BigInteger, nullable=False, server_default="0"),
    Column("is_recovered", Boolean, nullable=False, server_default=false()),
    Column("posted_at_us", BigInteger, nullable=False, server_default="0"),
    Index("usage_events_by_request", "request_id"),
    Index("usage_events_by_time", "tenant_id", "occurred_at_us"),
    Index("usage_events_by_posting", "posted_at_us"),
    Index(
        "usage_events_recovered",
        "tenant_id",
        "occurred_at_us",
        sqlite_where=text("is_recovered = 1"),
        postgresql_where=text("is_recovered"),
    ),
)

ledger_entries: Final = Table(
    "ledger_entries",
    metadata,
    Column("tenant_id", Text, primary_key=True),
    Column("occurred_at_us", BigInteger, primary_key=True, autoincrement=False),  # its event's
    Column("event_id", Text, primary_key=True),
    Column("token_class", Text, primary_key=True),
    Column("model", Text, nullable=False),
    Column("tokens", BigInteger, CheckConstraint("tokens > 0"), nullable=False),
    Column("pico_usd", BigInteger, CheckConstraint("pico_usd >= 0"), nullable=False),
    Column("price_id", Text, nullable=False),
    Column("late_after_invoice", BigInteger),  # its period was closed: billed by the next one
    # No foreign keys: an entry is posted with its event by one function, and looking both up again
    # for each took a third of PostgreSQL's time.  The audit looks.
    sqlite_with_rowid=False,
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

dead_letter_replays: Final = Table(
    "dead_letter_replays",
    metadata,
    Column("source_id", Text, primary_key=True),
    Column("source_offset", BigInteger, primary_key=True),
    Column("replayed_at_us", BigInteger, nullable=False),
    ForeignKeyConstraint(
        ["source_id", "source_offset"], ["dead_letters.source_id", "dead_letters.source_offset"]
    ),
)

adjustments: Final = Table(
    "adjustments",
    metadata,
    Column("tenant_id", Text, primary_key=True),
    Column("adjustment_id", Text, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("event_id", Text),  # what is corrected; None: no single event
    Column("occurred_at_us", BigInteger, nullable=False),  # of the service that it is for
    Column("posted_at_us", BigInteger, nullable=False),
    Column("pico_usd", BigInteger, nullable=False),  # below zero: in the tenant's favour
    Column("reason", Text, nullable=False),
    Column("late_after_invoice", BigInteger),
    ForeignKeyConstraint(
        ["tenant_id", "event_id"], ["usage_events.tenant_id", "usage_events.event_id"]
    ),
)

invoices: Final = Table(
    "invoices",
    metadata,
    Column("tenant_id", Text, primary_key=True),
    Column("number", BigInteger, primary_key=True),
    Column("month", Text, nullable=False),
    Column("time_zone", Text, nullable=False),
    Column("period_from_us", BigInteger, nullable=False),
    Column("period_to_us", BigInteger, nullable=False),
    Column("closed_at_us", BigInteger, nullable=False),
    Column("total_cents", BigInteger, CheckConstraint("total_cents >= 0"), nullable=False),
    Column("carried_pico_usd", BigInteger, nullable=False),  # owed to the tenant; zero or less
    Column("document", LargeBinary, nullable=False),  # as it was issued
    UniqueConstraint("tenant_id", "month"),
)

daily_usage: Final = Table(
    "daily_usage",
    metadata,
    Column("tenant_id", Text, primary_key=True),
    Column("day", BigInteger, primary_key=True),  # since 1970, UTC
    Column("key_id", Text, primary_key=True),
    Column("model", Text, primary_key=True),
    Column("num_requests", BigInteger, nullable=False),
    *(Column(f"{c.value}_tokens", BigInteger, nullable=False) for c in TokenClass),
    Column("micro_usd", BigInteger, nullable=False),
    Column("rest_pico_usd", BigInteger, nullable=False),
)

gateway_boots: Final = Table(  # what the numbers add up to that gateways gave their events
    "gateway_boots",
    metadata,
    Column("gateway_boot_id", Text, primary_key=True),
    Column("source_id", Text, primary_key=True),  # so that consumers do not wait for each other
    Column("num_events", BigInteger, nullable=False),
    Column("last_number", BigInteger, nullable=False),
    Column("sum_numbers", BigInteger, nullable=False),  # of remainders by ``SUMS_MODULUS``
    Column("sum_squares", BigInteger, nullable=False),
    Column("first_posted_at_us", BigInteger, nullable=False),
    Column("last_posted_at_us", BigInteger, nullable=False),
)
SUMS_MODULUS: Final = 2**31 - 1
"""A prime whose square is a number of the database's."""

_ALERT: Final = ("tenant_id", "budget", "period")

alerts: Final = Table(
    "alerts",
    metadata,
    *(Column(name, Text, primary_key=True) for name in _ALERT),
    Column("threshold_percent", BigInteger, primary_key=True),
    Column("raised_at_us", BigInteger, nullable=False),
    Column("document", LargeBinary, nullable=False),  # as it is told
)

alert_deliveries: Final = Table(
    "alert_deliveries",
    metadata,
    *(Column(name, Text, primary_key=True) for name in _ALERT),
    Column("threshold_percent", BigInteger, primary_key=True),
    Column("channel", Text, primary_key=True),
    Column("delivered_at_us", BigInteger, nullable=False),
)

late_reports: Final = Table(  # of recovered events, by the gateways that should have told them
    "late_reports",
    metadata,
    Column("tenant_id", Text, primary_key=True),
    Column("event_id", Text, primary_key=True),
    Column("gateway_boot_id", Text, nullable=False),
    Column("gateway_seq", BigInteger, nullable=False),
    Column("more_tokens", BigInteger, nullable=False),  # than was recovered; below zero: fewer
    Column("posted_at_us", BigInteger, nullable=False),
    Column("payload", LargeBinary, nullable=False),  # the event as it came
    ForeignKeyConstraint(
        ["tenant_id", "event_id"], ["usage_events.tenant_id", "usage_events.event_id"]
    ),
)

quota_acknowledgements: Final = Table(  # what is billed and the quota's totals will never have
    "quota_acknowledgements",
    metadata,
    Column("tenant_id", Text, primary_key=True),
    Column("lost_before_us", BigInteger, primary_key=True),
    Column("num_requests", BigInteger, nullable=False),
    Column("num_tokens", BigInteger, nullable=False),
    Column("posted_at_us", BigInteger, nullable=False),
)

ENTRIES_OF_EVENTS: Final = select(ledger_entries).join_from(
    usage_events,
    ledger_entries,
    (ledger_entries.c.tenant_id == usage_events.c.tenant_id)
    & (ledger_entries.c.occurred_at_us == usage_events.c.occurred_at_us)
    & (ledger_entries.c.event_id == usage_events.c.event_id),
)
"""To be narrowed by the events: entries are found by their instants."""

TOKEN_COLUMNS: Final = tuple(usage_events.c[f"{c.value}_tokens"] for c in TokenClass)
"""In the order of ``TokenClass``."""


def microseconds(instant: datetime) -> int:
    return (instant - _EPOCH) // _MICROSECOND


def instant_from_microseconds(occurred_at_us: int) -> datetime:
    return _EPOCH + occurred_at_us * _MICROSECOND


def sum_pico_usd() -> tuple[ColumnElement[int], ColumnElement[int]]:
    """(sum of whole micro-dollars, sum of the rest), for ``joined_pico_usd``.

    Apart, so that no sum can overflow 64 bits.
    """
    pico_usd = ledger_entries.c.pico_usd
    return (
        func.coalesce(func.sum(pico_usd // PICO_USD_PER_MICRO_USD), 0),
        func.coalesce(func.sum(pico_usd % PICO_USD_PER_MICRO_USD), 0),
    )


def split_pico_usd(pico_usd: int) -> tuple[int, int]:
    """(whole micro-dollars, rest): what ``joined_pico_usd`` joins again."""
    return divmod(pico_usd, PICO_USD_PER_MICRO_USD)


def day_of(instant_us: int) -> int:
    """Days since 1970, UTC."""
    return instant_us // US_PER_DAY


def joined_pico_usd(micro_usd: int, rest_pico_usd: int) -> int:
    return int(micro_usd) * PICO_USD_PER_MICRO_USD + int(rest_pico_usd)
