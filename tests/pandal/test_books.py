"""The accountant's commands, as they are typed, on a ledger that no fleet is running on."""

import csv
import io
import json
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import Result
from pydantic import SecretStr
from typer.testing import CliRunner

from billing.audit import Finding, Kind
from billing.auditor import AuditReport
from billing.lag import NO_LAG
from billing.ledger import Ledger
from billing.posting import rate_batch
from billing.reconciliation import seen_twice
from contracts.policy import encode_policy_document
from contracts.replica_usage import encode_replica_usage
from contracts.spool import frame
from contracts.usage import UsageEvent
from pandal.audit import sources_of
from pandal.cli import app
from pandal.datadir import DataDir
from pandal.errors import BadOption, NotAudited, NotFound, PandalError
from pandal.fleet_books import FleetBooks
from pandal.settings import CommandSettings
from pandal.usage import bar
from tests.billing.audited_books import record
from tests.billing.databases import execute, rows
from tests.billing.test_service import BASE_PRICES
from tests.billing.test_spend_counters import POLICIES
from tests.billing.usage_events import BOOK, SEGMENT, batch_of, usage, write_segment


def used_in_february(number: int) -> UsageEvent:
    return usage(number, gateway_seq=number, occurred_at=datetime(2026, 2, 10, tzinfo=UTC))


@pytest.fixture
def used(data_dir: DataDir) -> DataDir:
    """Three requests of February, which is over."""
    ledger = Ledger(data_dir.ledger_url)
    ledger.record_prices(BOOK)
    ledger.post(rate_batch(batch_of([used_in_february(n) for n in (1, 2, 3)]), BOOK))
    ledger.close()
    return data_dir


def run(data_dir: DataDir, *arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments, "--data-dir", str(data_dir.root)])


def printed(data_dir: DataDir, *arguments: str) -> str:
    result = run(data_dir, *arguments)
    assert result.exit_code == 0, result.output
    return str(result.stdout)


def test_of_another_ledger_the_local_fleets_policy_says_nothing(used: DataDir) -> None:
    used.policies.write_bytes(b"no policy")
    books = FleetBooks(used, "postgresql://billing@db/ledger")
    sources = sources_of(books, None, CommandSettings(quota_url=SecretStr("redis://q:1")))
    assert list(sources.policy_tenants()) == []


def test_usage_is_printed_as_a_table_as_json_and_as_csv(used: DataDir) -> None:
    period = ("--from", "2026-02-01", "--to", "2026-02-28")
    table = printed(used, "usage", "acme", *period)
    assert "2026-02-10" in table
    assert "3 requests, 321 tokens, 0.000696600021 USD" in table
    assert "█" in table
    by_key = json.loads(printed(used, "usage", *period, "--by", "key", "--json"))
    assert by_key["rows"][0]["key"] == "key-1"
    as_csv = printed(used, "usage", *period, "--by", "model", "--csv")
    (line,) = csv.DictReader(io.StringIO(as_csv))
    assert line["output_text_tokens"] == "21"
    assert list(line)[-1] == "num_unpriced_requests", "newer columns stand behind the older"
    later = ("--from", "2026-03-01", "--to", "2026-03-02")
    assert "nothing was used" in printed(used, "usage", "acme", *later)
    assert type(run(used, "usage", "globex", *period).exception) is NotFound


@pytest.mark.parametrize(
    ("value", "most", "shown"),
    [(0, 5, ""), (0, 0, ""), (5, 5, "█" * 24), (1, 10_000, "▏"), (1, 2, "█" * 12)],
)
def test_a_bar_shows_whatever_is_not_nothing(value: int, most: int, shown: str) -> None:
    assert bar(value, most, 24) == shown


def test_a_month_is_adjusted_closed_and_printed_again(used: DataDir) -> None:
    credit = ("billing", "adjust", "acme", "--usd=-0.01", "--reason", "outage", "--id", "c1")
    correct = (*credit, "--request", "request-1")
    assert [printed(used, *correct) for _ in range(2)] == ["posted\n", "had been posted before\n"]
    month = ("--month", "2026-02")
    assert type(run(used, "billing", "invoice", "acme", *month).exception) is NotFound
    used.terms.write_text("tenants: {acme: {time_zone: Pacific/Kiritimati}}")
    closed = printed(used, "billing", "close", "acme", *month, "--grace-hours", "0")
    invoice = json.loads(closed)
    assert invoice["time_zone"] == "Pacific/Kiritimati"
    assert invoice["total_usd"] == "0.00"
    assert {line["kind"] for line in invoice["lines"]} == {
        "usage",
        "credit",
        "credit to carry over",
    }
    assert printed(used, "billing", "invoice", "acme", *month) == closed


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("billing", "close", "acme", "--month", "2026-13"), BadOption),
        (("billing", "close", "acme", "--month", "2999-01"), PandalError),
        (("billing", "close", "No Tenant", "--month", "2026-02"), BadOption),
        (("billing", "adjust", "acme", "--usd", "x", "--reason", "r", "--id", "1"), BadOption),
        (
            ("billing", "adjust", "acme", "--usd=1", "--reason=r", "--id=1", "--request=none"),
            NotFound,
        ),
        (("billing", "close", "nobody", "--month", "2026-02"), NotFound),
        (("billing", "adjust", "nobody", "--usd=1", "--reason=r", "--id=1"), NotFound),
        (("usage", "No Tenant"), BadOption),
        (("usage", "--json", "--csv"), BadOption),
        (("usage", "--from", "2026-03-01", "--to", "2026-02-01"), BadOption),
        (("prices", "dry-run", "/no/such.yaml", "--month", "2026-02"), BadOption),
    ],
    ids=lambda value: value[-1] if isinstance(value, tuple) else value.__name__,
)
def test_a_wrong_question_is_refused(
    used: DataDir, arguments: tuple[str, ...], error: type[PandalError]
) -> None:
    assert type(run(used, *arguments).exception) is error


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("usage",), NotFound),
        (("audit",), NotAudited),
        (("billing", "replay"), NotFound),
        (("billing", "close", "acme", "--month", "2026-10"), NotFound),
    ],
    ids=str,
)
def test_where_no_fleet_has_run_there_is_nothing_and_none_is_made(
    data_dir: DataDir, arguments: tuple[str, ...], error: type[PandalError]
) -> None:
    assert type(run(data_dir, *arguments).exception) is error
    assert not data_dir.ledger.exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ("billing", "replay"),
        ("billing", "close", "acme", "--month", "2026-02"),
        ("billing", "adjust", "acme", "--usd=1", "--reason=r", "--id=1"),
    ],
    ids=str,
)
def test_a_ledger_of_another_version_is_left_to_its_billing(
    used: DataDir, arguments: tuple[str, ...]
) -> None:
    """Which could post no more, if a command had brought it up to date."""
    used.policies.write_bytes(encode_policy_document(POLICIES))
    execute(used.ledger_url, "UPDATE alembic_version SET version_num = '0006'")
    refused = run(used, *arguments).exception
    assert type(refused) is NotFound
    assert "found 0006" in str(refused)
    assert rows(used.ledger_url, "alembic_version")[0].version_num == "0006"


def test_a_book_is_exported_and_what_it_would_cost_is_told(used: DataDir, tmp_path: Path) -> None:
    toml, dearer = tmp_path / "book.toml", tmp_path / "book.yaml"
    toml.write_text(BASE_PRICES)
    exported = CliRunner().invoke(app, ["prices", "export", str(toml)])
    assert exported.exit_code == 0
    dearer.write_text(exported.stdout.replace("smol.1", "smol.2").replace("'15'", "'30'"))
    told = printed(used, "prices", "dry-run", str(dearer), "--month", "2026-02")
    assert told == "acme: 0.000696600021 USD, would be 0.001011600000 USD\n"


def test_another_book_than_the_ledgers_is_refused_and_not_recorded(
    used: DataDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fleet's is named by the same variable as for the fleet."""
    own = tmp_path / "book.toml"
    own.write_text(BASE_PRICES.replace('"15"', '"15.000001"'))
    before = rows(used.ledger_url, "prices")
    for command in (("audit",), ("billing", "replay")):
        refused = run(used, *command)
        assert type(refused.exception) is BadOption
        assert "not the book" in str(refused.exception)
    monkeypatch.setenv("BILLING_PRICE_BOOK", str(own))
    assert "0 posted, 0 were in the ledger, 0 left" in printed(used, "billing", "replay")
    assert "no difference" in run(used, "audit", "--patience-s", "0").output
    assert rows(used.ledger_url, "prices") == before


def test_an_audit_posts_what_is_missing_and_ends_with_status_1_for_what_differs(
    used: DataDir, tmp_path: Path
) -> None:
    book = tmp_path / "book.toml"
    book.write_text(BASE_PRICES.replace('"15"', '"15.000001"'))
    once = ("audit", "--price-book", str(book), "--patience-s", "0", "--grace-s", "0")
    records = [record(used_in_february(n)) for n in (1, 2, 3, 4)]
    lines = [frame(encode_replica_usage(each)) for each in records]
    write_segment(used.usage_journals, "x", b"")
    write_segment(used.usage_journal("replica-0"), SEGMENT, *lines)
    assert [run(used, *once).exit_code for _ in range(2)] == [1, 1]  # it changes nothing unasked
    of_ledger = ("--ledger-url", used.ledger_url)
    for status, again in ((3, ("--recover",)), (3, ()), (0, of_ledger)):
        agreed = run(used, *once, *again)
        assert "no difference" in agreed.output
        assert agreed.exit_code == status, agreed.output
    assert "PANDAL_QUOTA_URL names no quota store" in agreed.output
    document = json.loads(printed(used, *once, *of_ledger, "--json"))
    assert (document["agrees"], document["not_compared"]) == (True, [])
    assert document["accounts"]["acme"]["recovered"] == {"num_requests": 1, "num_tokens": 107}


def test_an_audit_that_could_not_ask_the_quotas_store_says_so_and_has_a_status_of_its_own(
    used: DataDir, tmp_path: Path
) -> None:
    """No fleet runs."""
    book = tmp_path / "book.toml"
    book.write_text(BASE_PRICES.replace('"15"', '"15.000001"'))
    once = ("audit", "--price-book", str(book), "--patience-s", "0")
    shown, told = run(used, *once), run(used, *once, "--json")
    assert (shown.exit_code, told.exit_code) == (3, 3)
    assert "the quota store is away: its totals were not compared" in shown.output
    assert "no difference in what could be read" in shown.output
    document = json.loads(told.stdout)
    assert (document["agrees"], document["not_compared"]) == (False, ["the quota's store"])
    # A difference that was found is one, whoever could not be asked.
    execute(used.ledger_url, "UPDATE daily_usage SET micro_usd = micro_usd + 1")
    assert run(used, *once).exit_code == 1


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo], ids=["directory", "pipe"])
def test_an_audit_names_what_it_cannot_read_and_ends_with_a_status_of_its_own(
    used: DataDir, tmp_path: Path, make: Callable[[Path], None]
) -> None:
    book = tmp_path / "book.toml"
    book.write_text(BASE_PRICES.replace('"15"', '"15.000001"'))
    write_segment(used.spool, "x", b"")
    make(used.spool / SEGMENT)
    result = run(used, "audit", "--price-book", str(book), "--patience-s", "0")
    assert result.exit_code == 3
    assert f"segment {SEGMENT} cannot be read" in result.output
    assert "no difference in what could be read" in result.output


def test_an_audit_of_a_ledger_that_cannot_be_read_has_the_same_status(used: DataDir) -> None:
    """It has found no difference: it has compared nothing."""
    away = run(used, "audit", "--ledger-url", "postgresql://127.0.0.1:1/ledger")
    execute(used.ledger_url, "UPDATE alembic_version SET version_num = '9999'")
    newer = run(used, "audit")
    assert isinstance(newer.exception, NotAudited)
    assert isinstance(away.exception, NotAudited)
    assert "found 9999" in str(newer.exception)


@pytest.mark.parametrize("number", ["inf", "1e300", "nan", "-1"])
@pytest.mark.parametrize("option", ["--hours", "--grace-s", "--patience-s"])
def test_an_audit_over_no_length_of_time_is_refused(
    data_dir: DataDir, option: str, number: str
) -> None:
    assert run(data_dir, "audit", option, number).exit_code == 2


def test_what_moves_is_a_difference_only_when_it_is_seen_again() -> None:
    """Under a steady load each look finds another event on its way."""
    first, second = (
        AuditReport(
            accounts={},
            findings=[
                Finding(Kind.NO_WITNESS, "acme", f"event-{n}", "on its way"),
                Finding(Kind.QUOTA_DIFFERS, "acme", "quota", f"by {n}"),
                *([Finding(Kind.MISPRICED, "acme", "event-2", "found late")] if n == 2 else []),
            ],
            missing={},
            unsure=frozenset(),
            lost={},
            num_waiting=0,
            lag=NO_LAG,
            num_unreadable=0,
            unreadable_segments=(),
            num_dead_letters=0,
            num_unpriced=0,
            num_not_by_gateways=0,
        )
        for n in (1, 2)
    )
    assert [(f.kind, f.detail) for f in seen_twice(first, second).findings] == [
        (Kind.QUOTA_DIFFERS, "by 2"),
        (Kind.MISPRICED, "found late"),
    ]
