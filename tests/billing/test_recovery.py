"""What no gateway lived to bill, what it says late, and what the quota's store has lost."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import msgspec
import pytest
from sqlalchemy import Connection, create_engine, text

from billing.audit import Account, Kind
from billing.ledger import Ledger
from billing.lookup import totals
from billing.posting import rate_batch
from billing.pricing import PriceBook
from billing.reconciliation import seen_twice
from billing.records import Record
from billing.recovery import recover
from billing.usage_report import Grouping, UsageQuery, usage_rows
from contracts.usage import Outcome, UsageSource, decode_usage_event
from tests.billing.audited_books import EVENTS, Books, event, record
from tests.billing.databases import rows
from tests.billing.usage_events import (
    BOOK,
    NOON,
    batch_of,
)
from tests.support.postgres import Postgres
from tests.support.waiting import eventually


@pytest.fixture
def books(either: Ledger, either_url: str, tmp_path: Path) -> Books:
    return Books(either, either_url, tmp_path)


def recover_all(books: Books) -> int:
    result = recover(books.ledger, books.ledger_url, BOOK, books.audit().missing)
    return result.num_posted


def test_what_a_killed_gateway_never_wrote_is_posted_once_and_marked(books: Books) -> None:
    """The quota is told of it then, and of no other."""
    lost = record(
        event(4), output_text_tokens=9, finish_reasons=("abort",), adapter="m", adapter_of="b"
    )
    books.post(*EVENTS)
    books.records.append(lost)
    assert books.found() == [(Kind.NO_EVENT, "event-4")]
    assert recover_all(books) == 1
    assert recover_all(books) == 0
    assert books.found() == [(Kind.QUOTA_DIFFERS, "quota")]
    books.quota = {"acme": Account(4, 306 + 109)}
    report = books.audit()
    assert report.findings == []
    assert report.accounts["acme"].recovered == Account(1, 109)
    (posted,) = [r for r in rows(books.ledger_url, "usage_events") if r.is_recovered]
    event_ = decode_usage_event(posted.payload)
    assert event_.request_id == "request-4"
    assert (event_.outcome, event_.usage_source) == (Outcome.GATEWAY_LOST, UsageSource.ENGINE)
    assert (event_.tier, event_.adapter, event_.adapter_of) == ("standard", "m", "b")
    assert totals(books.ledger_url, "acme").num_unpriced_requests == 0


def used_by_key(books: Books) -> dict[str, int]:
    query = UsageQuery(Grouping.KEY, date(2026, 1, 1), date(2027, 1, 1), "acme")
    return {row.group: row.total_tokens for row in usage_rows(books.ledger_url, query)}


def test_a_recovered_event_whose_gateway_speaks_up_later_counts_once(books: Books) -> None:
    books.post(*EVENTS)
    books.records.append(record(event(4)))
    recover_all(books)
    before = totals(books.ledger_url, "acme")
    books.post(event(4))
    books.post(event(4), event(5))
    books.quota = {"acme": Account(5, 306 + 104 + 105)}
    books.records.append(record(event(5)))
    assert books.found() == [], "its number is no gap"
    assert totals(books.ledger_url, "acme").pico_usd > before.pico_usd
    assert rows(books.ledger_url, "dead_letters") == []
    assert rows(books.ledger_url, "adjustments") == [], "as much as was recovered"
    assert used_by_key(books) == {"key-1": 515, "unknown": 0}


def test_what_a_late_gateway_knows_better_is_a_correction_once(books: Books) -> None:
    lost = record(event(4), output_text_tokens=1, is_final=False)
    books.post(*EVENTS)
    books.records.append(lost)
    recover_all(books)
    books.post(event(4))
    books.post(event(4))
    (correction,) = rows(books.ledger_url, "adjustments")
    assert (correction.kind, correction.event_id) == ("correction", "event-4")
    assert correction.pico_usd == 3 * 15_000_001
    books.quota = {"acme": Account(4, 306 + 104)}
    assert books.found() == []
    assert books.audit().accounts["acme"].recovered == Account(1, 104)
    assert used_by_key(books) == {"key-1": 410, "unknown": 0}
    books.post(event(4, request_id="another"))
    (letter,) = rows(books.ledger_url, "dead_letters")
    assert letter.reason == "contradictory"


def test_of_two_late_reports_in_one_batch_the_second_is_not_lost(books: Books) -> None:
    books.post(*EVENTS)
    books.records.append(record(event(4)))
    recover_all(books)
    books.post(event(4), event(4), event(4, request_id="another"))
    (letter,) = rows(books.ledger_url, "dead_letters")
    assert letter.reason == "contradictory"
    assert len(rows(books.ledger_url, "late_reports")) == 1


class Overtaken(Ledger):
    """Another auditor posts, each time after this one has asked where the ledger stands."""

    def next_offset(self, source_id: str) -> int | None:
        found = super().next_offset(source_id)
        self.post(rate_batch(batch_of([event(5)], first=found, source_id=source_id), BOOK))
        return found


def test_two_auditors_at_once_recover_each_event_once(books: Books) -> None:
    books.records = [record(event(4))]
    missing = books.audit().missing
    ledger = Overtaken(books.ledger_url)
    assert recover(ledger, books.ledger_url, BOOK, missing).num_posted == 1
    assert recover(ledger, books.ledger_url, BOOK, missing).num_repeated == 1
    ledger.close()


def test_a_late_report_in_other_bytes_is_a_repeat(books: Books) -> None:
    books.records.append(record(event(4)))
    books.post(*EVENTS)
    recover_all(books)
    books.post(event(4))
    again = batch_of([event(4)], source_id="spool/0b-000000.spool")
    again.records[0] = Record(0, again.records[0].payload.replace(b",", b", "))
    assert books.ledger.post(rate_batch(again, BOOK)).num_dead == 0
    assert rows(books.ledger_url, "dead_letters") == []


def test_an_adapter_that_gets_a_price_of_its_own_changes_nothing_of_before(books: Books) -> None:
    """What it cost by its model's price stays right, also where its gateway speaks up later."""
    law = {"model": "law", "adapter": "law", "adapter_of": BOOK.prices[0].model}
    books.records = [record(event(n, **law), **law) for n in (4, 5)]
    books.records.append(record(event(7, **law), **law, output_text_tokens=6))
    books.post(*EVENTS, event(5, **law))
    recover_all(books)
    doubled = {name: 2 * usd for name, usd in BOOK.prices[0].usd_per_million_tokens.items()}
    own = replace(BOOK.prices[0], price_id="law.1", model="law", usd_per_million_tokens=doubled)
    wider = PriceBook([*BOOK.prices, own])
    books.ledger.record_prices(wider)
    books.post(event(4, **law), event(6, **law), book=wider)
    assert rows(books.ledger_url, "adjustments") == []
    assert Kind.MISPRICED not in {finding.kind for finding in books.audit(wider).findings}
    charged = {(row.event_id, row.price_id) for row in rows(books.ledger_url, "ledger_entries")}
    assert {pair for pair in charged if pair[0] > "event-3"} == {
        ("event-4", "smol.1"), ("event-5", "smol.1"), ("event-6", "law.1"), ("event-7", "smol.1"),
    }  # fmt: skip
    books.post(event(7, **law), book=wider)
    (correction,) = rows(books.ledger_url, "adjustments")
    assert correction.pico_usd == 15_000_001, "one token more is one, by the price of the others"
    kinds = {finding.kind for finding in books.audit(wider).findings}
    assert not kinds & {Kind.MISPRICED, Kind.SUMS_DIFFER}


def test_what_is_priced_after_its_late_report_is_its_keys_money(books: Books) -> None:
    books.records = [record(event(4, model="new"))]
    recover_all(books)
    books.post(event(4, model="new"))
    of_any = replace(BOOK.prices[0], price_id="new.1", model="new")
    doubled = {name: 2 * usd for name, usd in of_any.usd_per_million_tokens.items()}
    of_its_tier = replace(of_any, price_id="new.2", tier="standard", usd_per_million_tokens=doubled)
    wider = PriceBook([*BOOK.prices, of_any, of_its_tier])
    books.ledger.record_prices(wider)
    assert books.ledger.post_unpriced(wider) == 1
    charged = [entry.pico_usd for entry in rows(books.ledger_url, "ledger_entries")]
    assert sum(charged) == 187_200_004, "the auditor did not know the tier"
    (correction,) = rows(books.ledger_url, "adjustments")
    assert (correction.event_id, correction.pico_usd) == ("event-4", 187_200_004)
    query = UsageQuery(Grouping.KEY, date(2026, 1, 1), date(2027, 1, 1), "acme")
    usd = {row.group: row.usd for row in usage_rows(books.ledger_url, query)}
    assert usd == {"key-1": Decimal("0.000374400008"), "unknown": 0}


def test_a_late_report_and_the_price_of_its_event_at_once_lose_no_money(books: Books) -> None:
    """Two consumers, each with half of what the other should know."""
    books.records = [record(event(4, model="new"))]
    recover_all(books)
    of_any = replace(BOOK.prices[0], price_id="new.1", model="new")
    doubled = {name: 2 * usd for name, usd in of_any.usd_per_million_tokens.items()}
    of_its_tier = replace(of_any, price_id="new.2", tier="standard", usd_per_million_tokens=doubled)
    wider = PriceBook([*BOOK.prices, of_any, of_its_tier])
    books.ledger.record_prices(wider)
    url = books.ledger_url
    with closing(Ledger(url)) as other, ThreadPoolExecutor(2) as pool, ExitStack() as stack:
        if not url.startswith("sqlite"):  # whose transactions are one after the other as it is
            row_is_held = stack.enter_context(holding(url, "unpriced_events"))
        pricing = pool.submit(other.post_unpriced, wider)
        if not url.startswith("sqlite"):
            eventually(lambda: num_waiting(url) == 1, "the price to wait for the row")
        posting = pool.submit(books.post, event(4, model="new"), book=wider)
        if not url.startswith("sqlite"):
            eventually(lambda: posting.done() or num_waiting(url) == 2, "the report to come")
            row_is_held.commit()
        assert pricing.result() in (0, 1)
        posting.result()
    books.ledger.post_unpriced(wider)
    charged = sum(entry.pico_usd for entry in rows(url, "ledger_entries"))
    corrected = sum(line.pico_usd for line in rows(url, "adjustments"))
    assert (charged, corrected) == (187_200_004, 187_200_004)
    query = UsageQuery(Grouping.KEY, date(2026, 1, 1), date(2027, 1, 1), "acme")
    assert {row.group: (row.total_tokens, row.usd) for row in usage_rows(url, query)} == {
        "key-1": (104, Decimal("0.000374400008")),
        "unknown": (0, 0),
    }


def test_a_late_report_and_prices_for_the_same_day_do_not_wait_for_each_other(
    postgres: Postgres, tmp_path: Path
) -> None:
    """In a circle, which PostgreSQL ends by ending one of them."""
    url = postgres.new_database()
    with (
        closing(Ledger(url)) as ledger,
        closing(Ledger(url)) as other,
        ThreadPoolExecutor(2) as pool,
    ):
        ledger.record_prices(BOOK)
        books = Books(ledger, url, tmp_path)
        books.records = [record(event(4, model="new"))]
        recover_all(books)
        books.post(event(1), event(5, model="new"))
        wider = PriceBook([*BOOK.prices, replace(BOOK.prices[0], price_id="new.1", model="new")])
        ledger.record_prices(wider)
        with holding(url, "daily_usage") as days_are_held:
            posting = pool.submit(books.post, event(6, model="new"), event(4, model="new"))
            eventually(lambda: num_waiting(url) == 1, "the posting to come to its day")
            pricing = pool.submit(other.post_unpriced, wider)
            eventually(lambda: num_waiting(url) == 2, "the prices to come")
            days_are_held.commit()
        posting.result()
        pricing.result()
        other.post_unpriced(wider)
    assert rows(url, "unpriced_events") == []
    assert len(rows(url, "late_reports")) == 1


@contextmanager
def holding(url: str, table: str) -> Iterator[Connection]:
    """All its rows, as a transaction in the middle has them."""
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.connect() as connection:
        connection.execute(text(f"SELECT * FROM {table} FOR UPDATE"))
        yield connection
    engine.dispose()


def num_waiting(url: str) -> int:
    return sum(not lock.granted for lock in rows(url, "pg_locks"))


def test_what_an_auditor_would_recover_and_a_gateway_has_told_is_a_repeat(books: Books) -> None:
    books.records.append(record(event(4), output_text_tokens=1))
    missing = books.audit().missing
    books.post(*EVENTS, event(4))
    assert recover(books.ledger, books.ledger_url, BOOK, missing).num_repeated == 4
    assert rows(books.ledger_url, "dead_letters") == []


LOST_AT = NOON + timedelta(minutes=5)


def test_what_the_quotas_store_has_lost_is_told_apart_and_acknowledged_once(books: Books) -> None:
    books.post(*EVENTS)
    books.quota = {"acme": Account(1, 103)}
    books.since = {"acme": LOST_AT}
    report = books.audit()
    assert [finding.kind for finding in report.findings] == [Kind.QUOTA_LOST]
    assert seen_twice(report, books.audit()).lost == report.lost
    loss = report.lost["acme"]
    assert (loss.since, loss.missing) == (LOST_AT, Account(2, 203))
    assert books.ledger.acknowledge("acme", loss)
    assert not books.ledger.acknowledge("acme", loss)
    assert books.found() == []
    books.post(event(4))
    books.records.append(record(event(4)))
    assert books.found() == [(Kind.QUOTA_DIFFERS, "quota")], "what is not told now is a difference"
    books.quota = {"acme": Account(2, 207)}
    assert books.found() == []


def test_a_tenant_without_any_totals_has_lost_them_when_others_have(books: Books) -> None:
    other = [event(n, tenant_id="globex", event_id=f"globex-{n}") for n in (4, 5)]
    books.post(*EVENTS, *other)
    books.records += map(record, other)
    books.quota = {"acme": Account(1, 103)}
    assert {kind for kind, _ in books.found()} == {Kind.QUOTA_DIFFERS}, "nothing says why"
    books.since = {"acme": LOST_AT}
    assert set(books.audit().lost) == {"acme", "globex"}


@pytest.mark.parametrize(
    ("since", "told"),
    [
        (NOON + timedelta(seconds=59), Account(1, 103)),
        (LOST_AT, Account(4, 409)),
        (LOST_AT, Account(1, 307)),
    ],
    ids=["counted from the beginning", "told more", "told more tokens"],
)
def test_a_quota_that_differs_otherwise_has_lost_nothing(
    books: Books, since: datetime, told: Account
) -> None:
    books.post(*EVENTS)
    books.quota = {"acme": told}
    books.since = {"acme": since}
    assert books.found() == [(Kind.QUOTA_DIFFERS, "quota")]


def test_a_recovered_answer_of_two_replicas_is_one_prompt_and_both_outputs(books: Books) -> None:
    first = record(event(4), output_text_tokens=10, is_final=False)
    then = record(
        event(4),
        input_uncached_tokens=110,
        input_cache_read_tokens=0,
        output_text_tokens=20,
        resumed_tokens=10,
        arrived_at=NOON + timedelta(seconds=1),
    )
    books.post(*EVENTS)
    books.records += [first, then]
    assert recover_all(books) == 1
    (posted,) = [r for r in rows(books.ledger_url, "usage_events") if r.is_recovered]
    assert (posted.input_uncached_tokens, posted.input_cache_read_tokens) == (36, 64)
    assert posted.output_text_tokens == 30
    assert posted.usage_source == "partial"


def test_a_recovered_answer_after_a_failed_attempt_is_the_last_one(books: Books) -> None:
    failed = record(event(4), output_text_tokens=5, is_final=False)
    then = record(event(4), output_text_tokens=7, arrived_at=NOON + timedelta(seconds=1))
    books.post(*EVENTS)
    books.records += [then, failed]
    assert recover_all(books) == 1
    (posted,) = [r for r in rows(books.ledger_url, "usage_events") if r.is_recovered]
    assert posted.output_text_tokens == 7


@pytest.mark.parametrize("is_first_the_winner", [True, False], ids=["first", "second"])
@pytest.mark.parametrize("is_resumed", [False, True], ids=["whole", "resumed"])
def test_a_recovered_answer_of_two_attempts_at_once_is_the_one_not_given_up(
    books: Books, is_first_the_winner: bool, is_resumed: bool
) -> None:
    """The other made a token before it was closed; both were computing for a while."""
    made = (2_000, 1) if is_first_the_winner else (1, 2_000)
    attempts = [
        record(
            event(4, is_stream=True),
            output_text_tokens=num_tokens,
            arrived_at=NOON + timedelta(milliseconds=200 * index),
            finished_at=NOON + timedelta(milliseconds=300 + 10 * num_tokens),
        )
        for index, num_tokens in enumerate(made)
    ]
    if is_resumed:
        arrived_at = NOON + timedelta(minutes=1)
        resumed = record(event(4, is_stream=True), resumed_tokens=2_000, arrived_at=arrived_at)
        attempts.append(msgspec.structs.replace(resumed, output_text_tokens=30))
    books.post(*EVENTS)
    books.records += attempts
    assert recover_all(books) == 1
    (posted,) = [r for r in rows(books.ledger_url, "usage_events") if r.is_recovered]
    assert posted.output_text_tokens == (2_030 if is_resumed else 2_000)


def test_a_recovered_document_is_of_the_last_attempt_whatever_the_one_before_made(
    books: Books,
) -> None:
    """It was asked for again after its time; its replica noticed a step later."""
    late = record(
        event(4, is_stream=False),
        output_text_tokens=9,
        arrived_at=NOON,
        finished_at=NOON + timedelta(seconds=2),
    )
    then = msgspec.structs.replace(
        late, output_text_tokens=7, arrived_at=NOON + timedelta(seconds=1)
    )
    books.post(*EVENTS)
    books.records += [then, late]
    assert recover_all(books) == 1
    (posted,) = [r for r in rows(books.ledger_url, "usage_events") if r.is_recovered]
    assert posted.output_text_tokens == 7
