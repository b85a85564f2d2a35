"""``pandal doctor --billing``: a billing elsewhere, by what it tells."""

import asyncio
import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from threading import Thread

import pytest
from typer.testing import CliRunner

from billing.audit import Finding, Kind
from billing.auditor import AuditReport
from billing.lag import NO_LAG
from billing.ledger import PostResult
from billing.telemetry import Telemetry, Told
from pandal.cli import app
from pandal.datadir import DataDir
from pandal.doctor.billing import billing_url_findings
from pandal.doctor.finding import Level

DIFFERS = Finding(Kind.QUOTA_DIFFERS, "acme", "quota", "more")


def told(ago: timedelta = timedelta()) -> Told:
    """It has read without a fault then."""
    at = datetime.now(UTC) - ago
    found = Told(lambda: at)
    found.note_read()
    return found


def report(*findings: Finding, num_dead_letters: int = 0, num_unpriced: int = 0) -> AuditReport:
    return AuditReport(
        accounts={}, findings=findings, missing={}, unsure=frozenset(), lost={},
        num_waiting=0, lag=NO_LAG, num_unreadable=0, unreadable_segments=[],
        num_dead_letters=num_dead_letters, num_unpriced=num_unpriced, num_not_by_gateways=0,
    )  # fmt: skip


def sound(found: Told) -> None:
    assert found.read_at is not None
    posted = PostResult(
        num_events=2, num_posted=2, num_repeated=0, num_unpriced=0, num_dead=0, num_late=1,
        newest_at=found.read_at - timedelta(seconds=4),
    )  # fmt: skip
    found.note_posted(posted)
    found.note_reconciled(report(), found.read_at)


def paused(found: Told) -> None:
    sound(found)
    found.note_paused("SourceUnavailable")


def with_findings(found: Told) -> None:
    assert found.read_at is not None
    differing = report(DIFFERS, num_dead_letters=3, num_unpriced=7)
    found.note_reconciled(differing, found.read_at - timedelta(hours=5))


async def levels(found: Told) -> list[tuple[Level, str]]:
    async with Telemetry(found).served("127.0.0.1", 0) as port:
        url = f"http://127.0.0.1:{port}"
        findings = await asyncio.to_thread(lambda: list(billing_url_findings(url)))
    return [(finding.level, finding.fact.removeprefix(f"{url}: ")) for finding in findings]


async def test_a_sound_one_is_fine_and_says_how_far_it_is() -> None:
    found = told()
    sound(found)
    (_, reading), (_, agreed) = found_levels = await levels(found)
    assert {level for level, _ in found_levels} == {Level.OK}
    assert "its last batch was 4 s old; 1 events came after their invoice" in reading
    assert "its accounts agreed" in agreed


@pytest.mark.parametrize(
    ("happens", "expected"),
    [
        (paused, (Level.FAILURE, "it is paused SourceUnavailable, and has read")),
        (with_findings, (Level.WARNING, "7 events wait for a price")),
        (with_findings, (Level.WARNING, "3 events could not be understood")),
        (with_findings, (Level.WARNING, "it compared all accounts the last time 5 h ago")),
        (with_findings, (Level.FAILURE, "its accounts differ (quota differs)")),
        (lambda _: None, (Level.WARNING, "it has not compared all accounts yet")),
    ],
)
async def test_what_is_wrong_is_told(
    happens: Callable[[Told], None], expected: tuple[Level, str]
) -> None:
    found = told()
    happens(found)
    level, words = expected
    assert [each for each in await levels(found) if each[0] is level and words in each[1]]


async def test_one_that_has_read_nothing_for_long_has_stopped() -> None:
    ((level, fact), _) = await levels(told(timedelta(hours=3)))
    assert level is Level.FAILURE
    assert "has read without a fault 3 h ago" in fact


async def test_one_that_opens_its_ledger_is_let_be() -> None:
    found = told()
    with found.opening():
        assert (await levels(found))[0][0] is Level.WARNING


@contextmanager
def answers(health: bytes, metrics: bytes) -> Iterator[str]:
    """The URL of a server that says these, each once, to who asks for them."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with suppress(OSError):  # shut down: the second question is not always asked
                for whole in (health, metrics):
                    connection, _ = server.accept()
                    with connection:
                        connection.recv(65_536)
                        connection.sendall(whole)

        thread = Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)  # wakes an accept
            thread.join()


READ_LONG_AGO = b"pandal_billing_read_timestamp_seconds 1\n"


@pytest.mark.parametrize(
    ("health", "metrics", "words"),
    [
        (b"200 OK\r\n\r\nok", READ_LONG_AGO + b"pandal_billing_differences 2\n", "(of no kind)"),
        (b"200 OK\r\n\r\nok", b"pandal_billing_read_timestamp_seconds NaN\n", "is no number"),
        (b"200 OK\r\n\r\nok", b"pandal_billing_lag_seconds +Inf\n", "is no number"),
        (b"200 OK\r\n\r\n\x1b[2Jgood\n", READ_LONG_AGO, "it is \N{REPLACEMENT CHARACTER}[2Jgood,"),
        (b"302 Found\r\nlocation: /login\r\n\r\n", b"", "/health answers 302"),
        (b"\x1b[2J\r\n\r\n", b"", "\N{REPLACEMENT CHARACTER}[2J"),
    ],
    ids=["no kind", "NaN", "Inf", "escape", "redirect", "escape for a status"],
)
def test_what_no_billing_says_is_a_failure(health: bytes, metrics: bytes, words: str) -> None:
    with answers(b"HTTP/1.1 " + health, b"HTTP/1.1 200 OK\r\n\r\n" + metrics) as url:
        found = list(billing_url_findings(url))
    assert [each for each in found if each.level is Level.FAILURE and words in each.fact]
    assert not [each for each in found if "\x1b" in each.fact]


def test_it_needs_no_fleet_here(data_dir: DataDir) -> None:
    asked = ["doctor", "--billing", "http://127.0.0.1:1", "--json", "--data-dir"]
    result = CliRunner().invoke(app, [*asked, str(data_dir.root)])
    found = json.loads(result.stdout)
    assert [each["about"] for each in found if each["level"] == "failure"] == ["billing"]
    assert result.exit_code == 1
