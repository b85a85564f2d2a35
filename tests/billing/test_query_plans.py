"""What is done for each batch takes as long in a ledger of years as in an empty one."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
from sqlalchemy import Connection, Engine, NullPool, create_engine, event

from billing.audit_facts import posted_events
from billing.ledger import Ledger, utc_now
from billing.ledger_database import reading
from billing.lookup import Used, find_event, used_by_event
from billing.posting import rate_batch
from billing.staging import CREATE_STAGED
from tests.billing.usage_events import BOOK, batch_of, usage

GROWING = ("usage_events", "ledger_entries", "dead_letters", "unpriced_events", "daily_usage")
TENANTS = ("acme", "globex")

Statement = tuple[str, object]


@contextmanager
def statements() -> Iterator[list[Statement]]:
    """All that any engine executes meanwhile, but for what executes one for many rows."""
    seen: list[Statement] = []

    def note(
        _connection: Connection,
        _cursor: object,
        statement: str,
        parameters: object,
        _context: object,
        many: bool,
    ) -> None:
        if not many and statement.startswith(("SELECT", "DELETE", "UPDATE")):
            seen.append((statement, parameters))

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(Engine, "before_cursor_execute", note)


def steps(ledger_url: str, seen: list[Statement]) -> list[tuple[str, str]]:
    """Those of SQLite's plans, each with its statement."""
    engine = create_engine(ledger_url, poolclass=NullPool)
    with engine.connect() as connection:
        connection.execute(CREATE_STAGED)  # as a connection that posts has it
        return [
            (step, statement)
            for statement, parameters in seen
            for *_, step in connection.exec_driver_sql(
                f"EXPLAIN QUERY PLAN {statement}",
                parameters,  # type: ignore[arg-type]
            )
        ]


def scans(ledger_url: str, seen: list[Statement]) -> list[str]:
    """The steps that look through the whole of a table that grows."""
    return [
        f"{step}: {statement}"
        for step, statement in steps(ledger_url, seen)
        if step.startswith("SCAN") and step.split()[1] in GROWING
    ]


def post(ledger: Ledger) -> None:
    """New events, repeats, contradictions and events without a price, of two tenants."""
    events = [usage(n, tenant_id=tenant) for n in range(500) for tenant in TENANTS]
    ledger.post(rate_batch(batch_of(events), BOOK))
    events[7] = usage(3, tenant_id="globex", output_text_tokens=8)
    ledger.post(rate_batch(batch_of([*events, usage(500, model="new")], first=1_000), BOOK))


def audit_events(ledger_url: str) -> None:
    with reading(ledger_url) as connection:
        assert len(list(posted_events(connection, BOOK, since=None))) == 1_001


def audit_late_events(ledger_url: str) -> None:
    """What has come last happened whenever it did."""
    with reading(ledger_url) as connection:
        posted = posted_events(connection, BOOK, since=utc_now() - timedelta(hours=2))
        assert len(list(posted)) == 1_001


LOOKS: dict[str, Callable[[str], object]] = {
    "an audit's entries": audit_events,
    "an audit's latest entries": audit_late_events,
    "a request": lambda url: find_event(url, request_id="request-7"),
    "what is still held": lambda url: used_by_event(url, "acme", ["event-1", "event-2"]),
}


def test_a_posting_looks_through_no_table(ledger: Ledger, ledger_url: str) -> None:
    with statements() as seen:
        post(ledger)
    assert seen
    assert scans(ledger_url, seen) == []


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_a_look_at_some_events_looks_through_no_table(
    ledger: Ledger, ledger_url: str, look: Callable[[str], object]
) -> None:
    post(ledger)
    with statements() as seen:
        look(ledger_url)
    assert scans(ledger_url, seen) == []


def test_an_audit_of_the_latest_events_goes_by_when_they_were_posted(
    ledger: Ledger, ledger_url: str
) -> None:
    """Else it costs as much as one of all events."""
    post(ledger)
    with statements() as seen:
        audit_late_events(ledger_url)
    pages = [step for step, statement in steps(ledger_url, seen) if "LIMIT" in statement]
    assert pages
    for step in pages:
        assert step.startswith("SEARCH usage_events USING INDEX usage_events_by_posting"), step


def test_what_is_still_held_takes_as_many_statements_for_many_as_for_one(
    ledger: Ledger, ledger_url: str
) -> None:
    post(ledger)
    with statements() as one:
        used_by_event(ledger_url, "acme", ["event-1"])
    with statements() as many:
        found = used_by_event(ledger_url, "acme", [f"event-{n}" for n in range(400)])
    assert len(one) == len(many)
    assert found["event-1"] == Used(num_tokens=107, pico_usd=232_200_007)


def test_no_statement_takes_more_than_old_sqlite_does(ledger: Ledger) -> None:
    with statements() as seen:
        post(ledger)
    assert max(len(parameters) for _, parameters in seen if isinstance(parameters, tuple)) < 1_000
