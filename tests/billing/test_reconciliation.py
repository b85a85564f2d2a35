"""Accounts that are compared again and again, and mended where that is certain."""

import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from itertools import chain, count, repeat
from pathlib import Path
from typing import Any

import pytest

from billing.audit import Kind
from billing.certainty import Sightings
from billing.errors import SourceUnavailable
from billing.lag import NO_LAG, Lag
from billing.ledger import Ledger, utc_now
from billing.posting import rate_batch
from billing.reconciliation import AuditRules, Sources, reconcile
from billing.telemetry import Told
from billing.watches import ReconciliationWatch
from contracts import metrics
from contracts.debts import decode_debt
from contracts.names import (
    quota_holds_key,
    quota_owed,
    quota_settled_key,
    tenant_id,
)
from contracts.replica_usage import encode_replica_usage
from contracts.spool import frame
from tests.billing.audited_books import EVENTS, event, record
from tests.billing.billing_process import BillingProcess
from tests.billing.databases import execute, rows
from tests.billing.test_service import BASE_PRICES
from tests.billing.usage_events import BOOK, NOON, SEGMENT, batch_of, line, write_segment
from tests.gateway.processes import Valkey
from tests.support.ports import free_port
from tests.support.waiting import eventually

ACME = tenant_id("acme")
RULES = AuditRules(grace=timedelta(0), patience_s=0.5, span=None, is_counted=True, recovers=True)


@pytest.fixture(scope="module")
def quota(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkey]:
    valkey = Valkey(tmp_path_factory.mktemp("quota"))
    valkey.start()
    yield valkey
    valkey.stop()


@pytest.fixture
def sources(ledger: Ledger, ledger_url: str, quota: Valkey, tmp_path: Path) -> Sources:
    """Three events that all accounts know of."""
    ledger.post(rate_batch(batch_of(EVENTS), BOOK))
    with quota.client as client:
        client.flushall()
    tell(quota, 3, sum(each.total_tokens for each in EVENTS))
    (tmp_path / "journals").mkdir()
    serve(tmp_path, *EVENTS)
    (tmp_path / "book.toml").write_text(BASE_PRICES.replace('"15"', '"15.000001"'))
    return Sources(
        ledger_url=ledger_url,
        price_book=tmp_path / "book.toml",
        spool_dir=tmp_path / "spool",
        journals_dir=tmp_path / "journals",
        quota_url=quota.url,
        policy_tenants=lambda: (),
        lag=lambda: NO_LAG,
    )


def serve(folder: Path, *events: object) -> None:
    lines = [frame(encode_replica_usage(record(each))) for each in events]  # type: ignore[arg-type]
    write_segment(folder / "journals" / "replica-0", SEGMENT, *lines)


def tell(quota: Valkey, num_requests: int, num_tokens: int, **more: int) -> None:
    totals = {"requests": num_requests, "tokens": num_tokens, **more}
    with quota.client as client:
        client.hset(quota_settled_key(ACME), mapping=totals)  # type: ignore[arg-type]


def a_lag() -> Lag:
    return Lag(ends={"0": 8}, read={"0": 7})


def no_broker() -> Lag:
    raise SourceUnavailable("kafka: gone")


@pytest.mark.parametrize("is_counted", [True, False], ids=["counted", "by sums"])
def test_one_that_counts_and_mends_brings_the_sums_of_numbers_up_to_date(
    sources: Sources, is_counted: bool
) -> None:
    execute(sources.ledger_url, "DELETE FROM gateway_boots")
    for _ in range(2):
        assert reconcile(sources, replace(RULES, is_counted=is_counted)).findings == []
    kept = [
        (row.gateway_boot_id, row.num_events) for row in rows(sources.ledger_url, "gateway_boots")
    ]
    assert kept == ([("0a", len(EVENTS))] if is_counted else [])


@pytest.mark.parametrize("lag", [a_lag, no_broker], ids=["a lag", "no broker"])
def test_nothing_is_posted_from_a_journal_before_all_events_are_read(
    sources: Sources, tmp_path: Path, lag: Callable[[], Lag]
) -> None:
    serve(tmp_path, *EVENTS, event(4))
    behind = replace(sources, lag=lag)
    report = reconcile(behind, RULES)
    assert (report.findings, report.unsure) == ([], {("acme", "event-4")}), "it may still come"
    assert len(rows(sources.ledger_url, "usage_events")) == 3
    report = reconcile(sources, RULES)
    assert [finding.kind for finding in report.findings] == [Kind.QUOTA_DIFFERS], "nobody told it"
    assert len(rows(sources.ledger_url, "usage_events")) == 4


@pytest.mark.parametrize("patience_s", [0.0, 30.0], ids=["after its patience", "within it"])
def test_what_was_not_certain_at_first_is_posted_once_all_events_are_read(
    sources: Sources, tmp_path: Path, patience_s: float
) -> None:
    """Of a gateway that was killed while billing was behind."""
    serve(tmp_path, *EVENTS, event(4))
    lags = chain((a_lag(),), repeat(Lag(ends={"0": 8}, read={"0": 8})))
    behind = replace(sources, lag=lambda: next(lags), quota_url=None)
    assert reconcile(behind, replace(RULES, patience_s=patience_s)).findings == []
    assert len(rows(sources.ledger_url, "usage_events")) == 4


def test_what_billing_reads_meanwhile_is_no_difference_where_nothing_is_mended(
    sources: Sources, tmp_path: Path
) -> None:
    serve(tmp_path, *EVENTS, event(4), event(5))
    lags = chain((a_lag(),), repeat(Lag(ends={"0": 8}, read={"0": 8})))
    behind = replace(sources, lag=lambda: next(lags), quota_url=None)
    report = reconcile(behind, replace(RULES, patience_s=30.0, recovers=False))
    assert [finding.subject for finding in report.findings] == ["event-4", "event-5"], "read by now"
    never = replace(sources, lag=a_lag, quota_url=None)
    report = reconcile(never, replace(RULES, patience_s=0.0, recovers=False))
    assert (report.findings, len(report.unsure)) == ([], 2)


def test_a_spool_that_never_is_empty_keeps_nothing_from_being_recovered(
    sources: Sources, tmp_path: Path
) -> None:
    serve(tmp_path, *EVENTS, event(4), event(5))
    write_segment(tmp_path / "spool", SEGMENT.replace("0a", "0c"), line(event(5)))
    report = reconcile(replace(sources, quota_url=None), RULES)
    assert (report.missing, report.num_waiting) == ({}, 1)
    assert recovered(sources) == ["event-4"]


def test_brokers_that_always_have_more_keep_nothing_from_being_recovered(
    sources: Sources, tmp_path: Path
) -> None:
    """What was written when it was first missed has been read: more may have come since."""
    serve(tmp_path, *EVENTS, event(4))
    lags = (Lag(ends={"0": 8 + n}, read={"0": 7 + n}) for n in count())
    steady = replace(sources, lag=lambda: next(lags), quota_url=None)
    assert reconcile(steady, RULES).missing == {}
    assert recovered(sources) == ["event-4"]


def test_a_ledger_that_is_far_behind_recovers_by_what_was_seen_an_hour_ago(
    sources: Sources, tmp_path: Path
) -> None:
    serve(tmp_path, *EVENTS, event(4))
    at_once, seen = replace(RULES, patience_s=0.0), Sightings()
    for read, is_missing in ((0, True), (999, True), (1_000, False)):
        lag = Lag(ends={"0": 1_000 + read}, read={"0": read})
        behind = replace(sources, lag=lambda now=lag: now, quota_url=None)
        report = reconcile(behind, at_once, sightings=seen)
        assert (set(report.missing), report.unsure) == (
            ({("acme", "event-4")}, {("acme", "event-4")}) if is_missing else (set(), set())
        )
    assert recovered(sources) == ["event-4"]


def recovered(sources: Sources) -> list[str]:
    return [row.event_id for row in rows(sources.ledger_url, "usage_events") if row.is_recovered]


def test_what_is_posted_and_still_held_is_told_to_the_gateways(
    sources: Sources, quota: Valkey, tmp_path: Path
) -> None:
    """Of a gateway that was killed in the middle of an answer."""
    serve(tmp_path, *EVENTS, event(4))
    with quota.client as client:
        client.hset(quota_holds_key(ACME), mapping={"event-4": b"held", "event-9": b"running"})
        reconcile(sources, RULES)
        reconcile(sources, RULES)  # no gateway has looked: nothing is owed twice
        (told,) = client.lrange(quota_owed(), 0, -1)
    owed = decode_debt(told)
    assert (owed.tenant_id, owed.event_id, owed.tokens) == ("acme", "event-4", 104)
    assert owed.nano_usd == 187_201  # 36 at 3, 64 at 0.3 and 4 at 15.000001 a million, rounded up


def test_a_quota_that_lost_its_memory_agrees_again(sources: Sources, quota: Valkey) -> None:
    lost_at_ms = round((NOON + timedelta(hours=1)).timestamp() * 1e3)
    tell(quota, 1, 103, since_ms=lost_at_ms)
    late = replace(RULES, grace=timedelta(days=36_500))
    assert [finding.kind for finding in reconcile(sources, late).findings] == [Kind.QUOTA_LOST]
    assert reconcile(sources, RULES).findings == []
    tell(quota, 1, 103)
    with quota.client as client:
        client.hincrby(quota_settled_key(ACME), "tokens", 1)
    assert [finding.kind for finding in reconcile(sources, RULES).findings] == [Kind.QUOTA_DIFFERS]


def test_what_a_quota_lost_is_not_acknowledged_before_all_is_known(
    sources: Sources, quota: Valkey
) -> None:
    tell(quota, 1, 103, since_ms=round((NOON + timedelta(hours=1)).timestamp() * 1e3))
    unreadable_segment(sources)
    for partly in (sources, replace(sources, spool_dir=None, lag=a_lag)):
        assert [finding.kind for finding in reconcile(partly, RULES).findings] == [Kind.QUOTA_LOST]
        assert rows(sources.ledger_url, "quota_acknowledgements") == []
    assert reconcile(replace(sources, spool_dir=None), RULES).findings == []


def test_what_cannot_be_compared_is_told(
    sources: Sources, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither that all was compared, nor why nothing is recovered, is left to be guessed."""
    serve(tmp_path, *EVENTS, event(4))
    segment = unreadable_segment(sources)
    told = Told(utc_now)
    books = ReconciliationWatch(lambda: reconcile(sources, RULES), told, has_quota_store=True)
    books.step()
    errors = [record for record in caplog.records if record.levelname == "ERROR"]
    assert [record.msg for record in errors] == [
        "not all accounts compared",
        "segment not compared",
        "what may still come is not posted yet",
    ]
    assert vars(errors[1])["segment"] == SEGMENT
    assert told.reconciled_at is None
    segment.rmdir()
    books.step()
    assert told.reconciled_at is not None


@pytest.mark.parametrize(
    ("changes", "is_checked"),
    [
        ({}, True),
        ({"lag": no_broker}, False),
        ({"quota_url": "unix:///nowhere/quota.sock"}, False),
        ({"quota_url": None}, True),  # there is none to ask
    ],
    ids=["all is known", "no brokers", "no quota", "without a quota store"],
)
def test_books_are_checked_only_where_all_could_be_asked(
    sources: Sources, changes: dict[str, Any], is_checked: bool
) -> None:
    asked, told = replace(sources, **changes), Told(utc_now)
    has_quota_store = asked.quota_url is not None
    books = ReconciliationWatch(
        lambda: reconcile(asked, RULES), told, has_quota_store=has_quota_store
    )
    books.step()
    assert (told.reconciled_at is not None) is is_checked


def test_a_segment_whose_events_are_all_posted_need_not_be_readable(
    sources: Sources, ledger: Ledger
) -> None:
    """As long as it has not grown."""
    segment = unreadable_segment(sources)
    posted = replace(batch_of([event(4)], first=3), next_offset=segment.stat().st_size)
    assert reconcile(sources, RULES).unreadable_segments == [SEGMENT]
    ledger.post(rate_batch(posted, BOOK))
    assert reconcile(sources, RULES).unreadable_segments == []


def unreadable_segment(sources: Sources) -> Path:
    """Whoever opens it finds no file."""
    assert sources.spool_dir is not None
    segment = sources.spool_dir / SEGMENT
    segment.mkdir(parents=True)
    return segment


def test_billing_compares_by_itself_and_tells_what_it_finds(
    sources: Sources, quota: Valkey, tmp_path: Path
) -> None:
    """What only a count of all shows as well, for as long as it is so."""
    tell(quota, 2, 204)
    execute(sources.ledger_url, "UPDATE daily_usage SET micro_usd = micro_usd + 1")
    port = free_port()
    with BillingProcess(
        tmp_path / "billing.log",
        BILLING_LEDGER_URL=sources.ledger_url,
        BILLING_SPOOL_DIR=str(sources.spool_dir),
        BILLING_PRICE_BOOK=str(sources.price_book),
        BILLING_USAGE_JOURNALS=str(sources.journals_dir),
        BILLING_QUOTA_URL=quota.url,
        BILLING_RECONCILE_INTERVAL_S="0.2",
        BILLING_RECONCILE_SPAN_S="1000000000",
        BILLING_PORT=str(port),
    ) as billing:
        billing.until_log_has("accounts differ")
        differing = f'{metrics.BILLING_DIFFERENCES}{{kind="quota differs"}}'
        money = f'{metrics.BILLING_DIFFERENCES}{{kind="sums differ"}}'
        for kind in (differing, money):
            assert f"{kind} 1" in page(port, "/metrics")
        assert f"{metrics.BILLING_RECONCILED_AT} " in page(port, "/metrics")
        assert f"{metrics.BILLING_CHARGED_USD} 0" in page(port, "/metrics")
        eventually(lambda: page(port, "/health").startswith("ok\nread_at 2"), "all to be read")
        assert page(port, "/health").endswith("posted_at never\nnever posted\n")
        tell(quota, 3, sum(each.total_tokens for each in EVENTS))
        eventually(lambda: f"{differing} 0" in page(port, "/metrics"), "the quota to agree")
        assert f"{money} 1" in page(port, "/metrics")
        execute(sources.ledger_url, "UPDATE daily_usage SET micro_usd = micro_usd - 1")
        eventually(lambda: f"{money} 0" in page(port, "/metrics"), "the accounts to agree")
        assert billing.terminate() == 0


def page(port: int, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}") as answer:
        return str(answer.read().decode())
