"""What is done for each batch takes as long in a ledger of years as in an empty one."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, NullPool, create_engine, event

from billing.audit import Account, QuotaTotals
from billing.audit_facts import posted_events
from billing.auditor import AuditScope, audit
from billing.lag import NO_LAG
from billing.ledger import Ledger, utc_now
from billing.ledger_database import reading
from billing.lookup import Used, find_event, tenants, used_by_event
from billing.posting import rate_batch
from billing.staging import CREATE_STAGED
from tests.billing.usage_events import BOOK, batch_of, usage

GROWING = ("usage_events", "ledger_entries", "dead_letters", "unpriced_events", "daily_usage")
EVENTS = ("usage_events", "ledger_entries")
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


def looks_through(ledger_url: str, seen: list[Statement]) -> list[str]:
    """The indexes or tables of events and entries that are read from end to end, in any order."""
    if ledger_url.startswith("sqlite"):
        found = [step for step, _ in steps(ledger_url, seen) if step.startswith("SCAN")]
        named = [step.split() for step in found if step.split()[1] in EVENTS]
        return [words[4] if "USING INDEX" in " ".join(words) else words[1] for words in named]
    engine = create_engine(ledger_url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.connect() as connection:
        for way in ("seqscan", "bitmapscan", "hashjoin", "mergejoin"):  # of small tables
            connection.exec_driver_sql(f"SET enable_{way} = off")
        plans = [
            connection.exec_driver_sql(
                f"EXPLAIN (FORMAT JSON) {statement}",
                parameters,  # type: ignore[arg-type]
            ).scalar_one()[0]["Plan"]
            for statement, parameters in seen
            if not statement.startswith("SELECT pg_")
        ]
    engine.dispose()
    return [
        str(node.get("Index Name", node["Relation Name"]))
        for plan in plans
        for node in _nodes(plan)
        if node.get("Relation Name") in EVENTS and "Index Cond" not in node
    ]


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:  # Any: PostgreSQL's JSON
    yield plan
    for inner in plan.get("Plans", ()):
        yield from _nodes(inner)


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


def audit_by_the_hour(ledger_url: str) -> None:
    now = utc_now()
    scope = AuditScope(
        spool_dir=None,
        lag=lambda: NO_LAG,
        witnesses=list,
        quota=lambda: {tenant: QuotaTotals(Account(1, 1), now) for tenant in TENANTS},
        since=now - timedelta(hours=2),
        is_counted=False,
        grace=timedelta(hours=1),
    )
    report = audit(ledger_url, BOOK, scope, now=now)
    assert sum(each.ledger.num_requests for each in report.accounts.values()) == 1_001
    assert sum(each.recovered.num_requests for each in report.accounts.values()) == 1


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
        goes_by_it = step.startswith("SEARCH usage_events USING INDEX usage_events_by_posting")
        assert goes_by_it or step.endswith(" OF ORDER BY"), step  # within one posting


def test_an_audit_by_the_hour_looks_through_no_events(either: Ledger, either_url: str) -> None:
    """But for those that an auditor has recovered, who are few: they have an index of their own."""
    post(either)
    either.post(rate_batch(batch_of([usage(501, is_recovered=True)], first=2_001), BOOK))
    with statements() as seen:
        audit_by_the_hour(either_url)
        assert set(tenants(either_url)) == set(TENANTS)
    assert looks_through(either_url, seen) == ["usage_events_recovered"]


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
