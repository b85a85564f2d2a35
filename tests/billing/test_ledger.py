"""The ledger counts each event once, whatever arrives, in whatever order, however often.

In either database, by one suite.
"""

import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import create_engine, insert
from sqlalchemy.exc import IntegrityError

from billing.errors import OffsetConflict, PriceBookInvalid
from billing.ledger import Ledger, PostResult
from billing.ledger_schema import source_offsets
from billing.lookup import find_event, totals
from billing.posting import rate_batch
from billing.pricing import Price, PriceBook, TokenClass
from contracts.usage import UsageEvent
from tests.billing.databases import execute, rows
from tests.billing.usage_events import BOOK, MODEL, PRICE, batch_of, usage
from tests.support.postgres import Postgres
from tests.support.waiting import eventually

TENANTS = ("acme", "globex")


def post(
    ledger: Ledger, events: list[UsageEvent], *, first: int | None = None, book: PriceBook = BOOK
) -> PostResult:
    return ledger.post(rate_batch(batch_of(events, first=first), book))


def test_one_event_becomes_one_entry_per_class(either: Ledger, either_url: str) -> None:
    result = post(either, [usage(1)])
    assert result == PostResult(
        num_events=1,
        num_posted=1,
        num_repeated=0,
        num_unpriced=0,
        num_dead=0,
        newest_at=usage(1).occurred_at,
        charged_pico_usd=64 * 300_000 + 36 * 3_000_000 + 7 * 15_000_001,
    )
    entries = rows(either_url, "ledger_entries")
    assert [
        (e.token_class, e.tokens, e.pico_usd, e.price_id) for e in sorted(entries, key=str)
    ] == [
        ("input_cache_read", 64, 64 * 300_000, "smol.1"),
        ("input_uncached", 36, 36 * 3_000_000, "smol.1"),
        ("output_text", 7, 7 * 15_000_001, "smol.1"),
    ]


def test_an_event_without_tokens_is_a_row_that_owes_nothing(
    either: Ledger, either_url: str
) -> None:
    nothing = usage(1, input_uncached_tokens=0, input_cache_read_tokens=0, output_text_tokens=0)
    post(either, [nothing, msgspec.structs.replace(nothing, event_id="b", model="unknown")])
    summary = totals(either_url, "acme")
    assert (summary.num_requests, summary.num_unpriced_requests, summary.pico_usd) == (2, 0, 0)
    assert rows(either_url, "ledger_entries") == []


def test_a_replay_from_the_beginning_is_reported_as_repeats(
    either: Ledger, either_url: str
) -> None:
    events = [usage(n) for n in range(5)]
    post(either, events)
    before = totals(either_url, "acme")
    execute(either_url, "DELETE FROM source_offsets")
    assert post(either, events) == PostResult(
        num_events=5,
        num_posted=0,
        num_repeated=5,
        num_unpriced=0,
        num_dead=0,
        newest_at=max(event.occurred_at for event in events),
    )
    assert totals(either_url, "acme") == before


def test_one_event_id_of_two_tenants_is_two_events(either: Ledger, either_url: str) -> None:
    post(either, [usage(1), usage(1, tenant_id="globex")])
    assert [totals(either_url, t).num_requests for t in TENANTS] == [1, 1]


def test_other_content_under_a_known_event_id_is_kept_as_dead_letter(
    either: Ledger, either_url: str
) -> None:
    post(either, [usage(1)])
    result = post(either, [usage(1, output_text_tokens=8)], first=1)
    assert (result.num_repeated, result.num_dead) == (0, 1)
    assert [tuple(row[:3]) for row in rows(either_url, "dead_letters")] == [
        ("spool/0a-000000.spool", 1, "contradictory")
    ]
    assert totals(either_url, "acme").tokens[TokenClass.OUTPUT_TEXT] == 7


def test_a_batch_of_repeats_tells_the_contradictory_ones_apart_by_tenant(
    either: Ledger, either_url: str
) -> None:
    post(either, [usage(n, tenant_id=tenant) for n in range(300) for tenant in TENANTS])
    repeats = [usage(n, tenant_id=tenant) for n in range(300) for tenant in TENANTS]
    repeats[7] = msgspec.structs.replace(repeats[7], output_text_tokens=8)
    result = post(either, [*repeats, usage(300), usage(300)], first=600)
    assert (result.num_posted, result.num_repeated, result.num_dead) == (1, 600, 1)
    assert [tuple(row[:3]) for row in rows(either_url, "dead_letters")] == [
        ("spool/0a-000000.spool", 607, "contradictory")
    ]
    assert [totals(either_url, t).num_requests for t in TENANTS] == [301, 300]


@pytest.mark.parametrize("first", [None, 0, 1, 3])
def test_a_batch_from_elsewhere_than_the_ledger_stands_changes_nothing(
    either: Ledger, either_url: str, first: int | None
) -> None:
    post(either, [usage(1), usage(2)])
    with pytest.raises(OffsetConflict) as conflict:
        post(either, [usage(3)], first=first)
    assert conflict.value.stored_offset == 2
    assert totals(either_url, "acme").num_requests == 2


def test_of_two_that_are_first_one_finds_where_the_other_stands(postgres: Postgres) -> None:
    """SQLite's transactions are one after the other as it is."""
    url = postgres.new_database()
    with closing(Ledger(url)) as ledger, ThreadPoolExecutor(1) as pool:
        engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
        with engine.connect() as other:
            other.execute(insert(source_offsets), {"source_id": "audit", "next_offset": 2})
            batch = batch_of([usage(1)], source_id="audit")
            posting = pool.submit(ledger.post, rate_batch(batch, PriceBook([])))
            eventually(lambda: is_one_waiting(url), "the second to wait for the first")
            other.commit()
        engine.dispose()
        with pytest.raises(OffsetConflict) as conflict:
            posting.result()
    assert conflict.value.stored_offset == 2


def is_one_waiting(url: str) -> bool:
    return any(not lock.granted for lock in rows(url, "pg_locks"))


def test_an_unknown_source_is_not_joined_in_the_middle(either: Ledger) -> None:
    with pytest.raises(OffsetConflict) as conflict:
        post(either, [usage(3)], first=7)
    assert conflict.value.stored_offset is None


@pytest.mark.parametrize("table", ["usage_events", "ledger_entries", "prices", "dead_letters"])
@pytest.mark.parametrize("change", ["UPDATE {} SET {} = NULL", "DELETE FROM {}"])
def test_nothing_posted_can_be_changed(
    either: Ledger, either_url: str, table: str, change: str
) -> None:
    post(either, [usage(1), usage(1, output_text_tokens=8)])
    column = (
        "price_id" if table == "prices" else "payload" if table != "ledger_entries" else "model"
    )
    with pytest.raises(IntegrityError, match=f"{table} is append-only"):
        execute(either_url, change.format(table, column))


def test_an_unpriced_event_waits_and_is_rated_once(either: Ledger, either_url: str) -> None:
    result = post(either, [usage(1, model="new"), usage(2)])
    assert (result.num_posted, result.num_unpriced) == (2, 1)
    waiting = find_event(either_url, request_id="request-1")
    assert waiting is not None
    assert waiting.usd is None
    assert either.post_unpriced(BOOK) == 0

    wider = PriceBook([PRICE, price_of("new", "new.1")])
    either.record_prices(wider)
    assert [either.post_unpriced(wider) for _ in range(2)] == [1, 0]
    rated, known = (find_event(either_url, request_id=f"request-{n}") for n in (1, 2))
    assert rated is not None
    assert known is not None
    assert rated.usd == known.usd
    assert totals(either_url, "acme").num_unpriced_requests == 0


def test_an_adapter_without_a_price_costs_what_its_model_does(
    either: Ledger, either_url: str
) -> None:
    """It is never free: it waits where neither has a price, and its own goes before."""
    of_known = {"model": "law", "adapter": "law", "adapter_of": MODEL}
    of_new = {"model": "poetry", "adapter": "poetry", "adapter_of": "new"}
    result = post(either, [usage(1, **of_known), usage(2), usage(3, **of_new)])
    assert (result.num_unpriced, result.unpriced_models) == (1, {"poetry"})
    found = [find_event(either_url, request_id=f"request-{n}") for n in (1, 2, 3)]
    adapted, known, waiting = (None if each is None else each.usd for each in found)
    assert adapted == known is not None
    assert waiting is None

    own = price_of("law", "law.1", factor=2)
    wider = PriceBook([PRICE, own, price_of("new", "new.1")])
    either.record_prices(wider)
    assert [either.post_unpriced(wider) for _ in range(2)] == [1, 0]
    beside = of_known | {
        "model": f"{MODEL}:law",
        "adapter": f"{MODEL}:law",
    }  # another bears its name
    post(either, [usage(4, **of_known), usage(5, **beside)], first=3, book=wider)
    prices = {(row.event_id, row.price_id) for row in rows(either_url, "ledger_entries")}
    assert prices == {
        ("event-1", "smol.1"), ("event-2", "smol.1"), ("event-3", "new.1"), ("event-4", "law.1"),
        ("event-5", "law.1"),
    }  # fmt: skip


def test_an_event_of_a_known_model_before_its_first_price_waits(
    either: Ledger, either_url: str
) -> None:
    post(either, [usage(1, occurred_at=datetime(2025, 12, 31, tzinfo=UTC))])
    assert either.post_unpriced(BOOK) == 0
    assert totals(either_url, "acme").num_unpriced_requests == 1


def test_more_unpriced_events_than_one_transaction_holds_are_all_rated(
    either: Ledger, either_url: str
) -> None:
    post(either, [usage(n, model="new", tenant_id=TENANTS[n % 2]) for n in range(1_203)])
    wider = PriceBook([PRICE, price_of("new", "new.1")])
    either.record_prices(wider)
    ended: list[None] = []
    assert either.post_unpriced(wider, lambda: ended.append(None)) == 1_203
    assert len(ended) > 2, "each transaction is told, not only the last"
    assert sum(totals(either_url, t).num_unpriced_requests for t in TENANTS) == 0


def test_a_used_price_cannot_change_its_terms_but_may_be_closed(either: Ledger) -> None:
    dearer = price_of(MODEL, PRICE.price_id, factor=2)
    with pytest.raises(PriceBookInvalid, match=r"'smol\.1' is in the ledger with other terms"):
        either.record_prices(PriceBook([dearer]))
    closed = Price(
        PRICE.price_id,
        PRICE.model,
        PRICE.effective_from,
        datetime(2027, 1, 1, tzinfo=UTC),
        PRICE.usd_per_million_tokens,
    )
    either.record_prices(PriceBook([closed]))


EVENTS = [
    usage(
        n,
        tenant_id=TENANTS[n % 2],
        model=MODEL if n % 5 else "unknown",
        output_text_tokens=n,
    )
    for n in range(12)
]
deliveries = st.lists(st.lists(st.sampled_from(EVENTS), max_size=8), max_size=6)


def post_all(ledger_url: str, batches: Sequence[list[UsageEvent]]) -> list[object]:
    ledger = Ledger(ledger_url)
    try:
        ledger.record_prices(BOOK)
        next_offset = None
        for events in batches:
            batch = batch_of(events, first=next_offset)
            ledger.post(rate_batch(batch, BOOK))
            next_offset = batch.next_offset
    finally:
        ledger.close()
    return [totals(ledger_url, tenant) for tenant in TENANTS]


@settings(max_examples=25, deadline=None)
@given(deliveries, st.permutations(EVENTS))
def test_any_order_repetition_and_batching_gives_the_same_totals(
    batches: list[list[UsageEvent]], rest: list[UsageEvent]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        mixed = post_all(f"sqlite:///{folder}/mixed.db", [*batches, rest])
        plain = post_all(f"sqlite:///{folder}/plain.db", [EVENTS])
    assert mixed == plain


def price_of(model: str, price_id: str, factor: int = 1) -> Price:
    rates = {c: usd * factor for c, usd in PRICE.usd_per_million_tokens.items()}
    return Price(price_id, model, PRICE.effective_from, None, rates)
