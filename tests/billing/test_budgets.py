"""Each threshold alerts once a period, signed, and to whoever the terms name."""

import contextlib
import http.server
import socket
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from billing.alerts import AlertBook
from billing.budgets import days_of
from billing.errors import TermsInvalid, WebhookFailed
from billing.ledger import Ledger
from billing.posting import rate_batch
from billing.terms import NO_TERMS, BudgetPeriod, Webhook, parse_terms, read_terms
from billing.watches import BudgetWatch
from billing.webhook import WebhookSender, signature
from contracts.usage import UsageEvent
from tests.billing.usage_events import BOOK, NOON, batch_of, usage

SECRET = b"0123456789abcdef"
TERMS = """
tenants:
  acme:
    budgets:
      - {name: month, period: month, usd: "0.0005", thresholds_percent: [100, 50, 80]}
      - {name: ci, period: day, usd: "0.0002", key_id: key-2}
"""


class Clock:
    now = NOON

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def book(either: Ledger, either_url: str, clock: Clock) -> Iterator[AlertBook]:
    book = AlertBook(either_url, clock)
    yield book
    book.close()


def post(ledger: Ledger, *events: UsageEvent, first: int | None = None) -> None:
    ledger.post(rate_batch(batch_of(list(events), first=first), BOOK))


def test_each_threshold_is_raised_once_a_period(
    either: Ledger, book: AlertBook, clock: Clock, either_url: str
) -> None:
    """An event is 0.0002322 USD: two are 92 percent of the month, five more than all."""
    terms = parse_terms(TERMS)
    assert book.raise_due(terms) == []
    post(either, usage(1), usage(2))
    assert [a.threshold_percent for a in book.raise_due(terms)] == [50, 80]
    post(either, usage(3, key_id="key-2"), usage(4), usage(5), first=2)
    assert [a.alert_id for a in book.raise_due(terms)] == [
        "acme/month/2026-11/100",
        "acme/ci/2026-11-29/80",
        "acme/ci/2026-11-29/100",
    ]
    again = AlertBook(either_url, clock)  # another process, which remembers nothing
    assert book.raise_due(terms) == again.raise_due(terms) == []
    again.close()
    clock.now = NOON + timedelta(days=1)
    post(either, usage(6, key_id="key-2", occurred_at=clock.now), first=5)
    assert [a.alert_id for a in book.raise_due(terms)] == [
        "acme/ci/2026-11-30/80",
        "acme/ci/2026-11-30/100",
    ]


def test_an_alert_is_pending_until_it_was_taken(either: Ledger, book: AlertBook) -> None:
    post(either, usage(1), usage(2))
    raised = book.raise_due(parse_terms(TERMS))
    assert book.pending() == raised
    book.mark_delivered(raised[0])
    book.mark_delivered(raised[0])
    assert book.pending() == raised[1:]
    told = msgspec.json.decode(raised[0].document)
    assert (told["type"], told["tenant_id"]) == ("budget.threshold.v1", "acme")
    assert (told["spent_usd"], told["budget_usd"]) == ("0.000464400014", "0.0005")


@pytest.mark.parametrize(
    ("period", "now", "name", "num_days"),
    [
        (BudgetPeriod.DAY, NOON, "2026-11-29", 1),
        (BudgetPeriod.MONTH, NOON, "2026-11", 30),
        (BudgetPeriod.MONTH, datetime(2026, 12, 31, 23, 59, tzinfo=UTC), "2026-12", 31),
        (BudgetPeriod.MONTH, datetime(2028, 2, 29, tzinfo=UTC), "2028-02", 29),
    ],
)
def test_periods_are_those_of_the_calendar(
    period: BudgetPeriod, now: datetime, name: str, num_days: int
) -> None:
    days = days_of(period, now)
    assert (days.name, days.last - days.first + 1) == (name, num_days)
    today = (now.date() - datetime(1970, 1, 1, tzinfo=UTC).date()).days
    assert days.first <= today <= days.last


def never() -> bool:
    return False


class Receiver:
    """A webhook's other side: answers with ``status``, keeps what it accepted."""

    def __init__(self) -> None:
        self.status = 200
        self.refused: set[str] = set()  # alerts
        self.location = ""
        self.calls: list[tuple[dict[str, str], bytes]] = []
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                receiver.calls.append(({k.lower(): v for k, v in self.headers.items()}, body))
                is_refused = self.headers["x-pandal-alert-id"] in receiver.refused
                self.send_response(422 if is_refused else receiver.status)
                self.send_header("location", receiver.location)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_arguments: object) -> None: ...

        self.server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/alerts"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    thread = threading.Thread(target=receiver.server.serve_forever, daemon=True)
    thread.start()
    yield receiver
    receiver.server.shutdown()
    receiver.server.server_close()
    thread.join()


def test_alerts_are_told_signed_and_again_until_they_are_taken(
    ledger: Ledger, ledger_url: str, clock: Clock, receiver: Receiver, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_bytes(SECRET + b"\n")
    hook = f"webhook: {{url: '{receiver.url}', secret_file: '{tmp_path / 'secret'}'}}\n"
    (tmp_path / "terms.yaml").write_text(hook + TERMS)
    post(ledger, usage(1), usage(2))
    book = AlertBook(ledger_url, clock)
    watch = BudgetWatch(book, tmp_path / "terms.yaml", clock, never)
    receiver.status = 503
    with pytest.raises(WebhookFailed):
        watch.step()
    assert len(book.pending()) == 2
    receiver.status = 204
    receiver.calls.clear()
    watch.step()
    watch.step()
    book.close()
    ids = [headers["x-pandal-alert-id"] for headers, _ in receiver.calls]
    assert ids == ["acme/month/2026-11/50", "acme/month/2026-11/80"]
    headers, body = receiver.calls[-1]
    at_s = int(NOON.timestamp())
    assert headers["x-pandal-signature"] == f"t={at_s},v1={signature(SECRET, at_s, body)}"


def hooked(receiver: Receiver, folder: Path) -> str:
    """Terms whose alerts go there."""
    (folder / "secret").write_bytes(SECRET)
    return f"webhook: {{url: '{receiver.url}', secret_file: '{folder / 'secret'}'}}\n{TERMS}"


def test_an_alert_that_is_refused_keeps_none_behind_it(
    ledger: Ledger, ledger_url: str, clock: Clock, receiver: Receiver, tmp_path: Path
) -> None:
    (tmp_path / "terms.yaml").write_text(hooked(receiver, tmp_path))
    post(ledger, usage(1), usage(2))
    receiver.refused = {"acme/month/2026-11/50"}
    book = AlertBook(ledger_url, clock)
    watch = BudgetWatch(book, tmp_path / "terms.yaml", clock, never)
    with pytest.raises(WebhookFailed, match="422"):
        watch.step()
    assert [alert.threshold_percent for alert in book.pending()] == [50]
    book.close()


def test_a_redirect_is_no_delivery_and_is_not_followed(
    clock: Clock, receiver: Receiver, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_bytes(SECRET)
    hook = Webhook(url=receiver.url, secret_file=str(tmp_path / "secret"))
    receiver.location = receiver.url
    for receiver.status in (301, 302, 307, 404):
        with pytest.raises(WebhookFailed, match=str(receiver.status)):
            WebhookSender(hook, clock).send("acme/month/2026-11/50", b"{}")
    assert len(receiver.calls) == 4
    receiver.status = 200
    WebhookSender(hook, clock).send("acme/März\n/2026-11/50", b"{}")
    assert receiver.calls[-1][0]["x-pandal-alert-id"] == "acme/M%C3%A4rz%0A/2026-11/50"


def test_a_receiver_that_never_ends_its_answer_is_left_at_the_deadline(
    clock: Clock, tmp_path: Path
) -> None:
    """Byte by byte, which a socket's own timeout takes for progress."""
    (tmp_path / "secret").write_bytes(SECRET)
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/"
        thread = threading.Thread(target=dribble, args=[server])
        thread.start()
        sender = WebhookSender(
            Webhook(url=url, secret_file=str(tmp_path / "secret")), clock, deadline_s=0.5
        )
        with pytest.raises(WebhookFailed):
            sender.send("acme/month/2026-11/50", b"{}")
        thread.join()


def dribble(server: socket.socket) -> None:
    """Until the other side has gone."""
    connection, _ = server.accept()
    with connection, contextlib.suppress(OSError):
        connection.sendall(b"HTTP/1.1 200 OK\r\nx-long: ")
        connection.settimeout(0.05)
        while True:
            connection.sendall(b"a")
            with contextlib.suppress(TimeoutError):
                if not connection.recv(1 << 16):
                    return


def test_alerts_wait_until_terms_were_read_and_go_where_the_last_good_ones_say(
    ledger: Ledger, ledger_url: str, clock: Clock, receiver: Receiver, tmp_path: Path
) -> None:
    """Marked as told by nobody they would be lost."""
    path = tmp_path / "terms.yaml"
    post(ledger, usage(1), usage(2))
    book = AlertBook(ledger_url, clock)
    book.raise_due(parse_terms(TERMS))  # before a restart
    watch = BudgetWatch(book, path, clock, never)
    watch.step()
    path.write_text("tenants: [")
    with pytest.raises(TermsInvalid):
        watch.step()
    assert len(book.pending()) == 2
    path.write_text(hooked(receiver, tmp_path))
    receiver.status = 503
    with pytest.raises(WebhookFailed):
        watch.step()
    path.unlink()
    receiver.status = 200
    watch.step()
    assert book.pending() == []
    assert len(receiver.calls) == 4
    book.close()


def test_a_watch_that_is_to_stop_tells_no_more(
    ledger: Ledger, ledger_url: str, clock: Clock, receiver: Receiver, tmp_path: Path
) -> None:
    (tmp_path / "terms.yaml").write_text(hooked(receiver, tmp_path))
    post(ledger, usage(1), usage(2))
    book = AlertBook(ledger_url, clock)
    BudgetWatch(book, tmp_path / "terms.yaml", clock, lambda: bool(receiver.calls)).step()
    assert [alert.threshold_percent for alert in book.pending()] == [80]
    book.close()


def test_what_a_period_ended_with_is_alerted_of_when_it_comes_late(
    either: Ledger, book: AlertBook, clock: Clock
) -> None:
    terms = parse_terms(TERMS)
    clock.now = datetime(2026, 12, 1, 1, 59, tzinfo=UTC)
    late = [usage(n, occurred_at=datetime(2026, 11, 30, 23, 59, tzinfo=UTC)) for n in (1, 2)]
    post(either, *late)
    assert [a.alert_id for a in book.raise_due(terms)] == [
        "acme/month/2026-11/50",
        "acme/month/2026-11/80",
    ]
    clock.now += timedelta(minutes=1)
    post(either, usage(3, occurred_at=late[0].occurred_at), first=2)
    assert book.raise_due(terms) == []


def test_bad_terms_are_said_and_the_last_good_ones_hold(
    ledger: Ledger, ledger_url: str, clock: Clock, tmp_path: Path
) -> None:
    path = tmp_path / "terms.yaml"
    path.write_text(TERMS)
    book = AlertBook(ledger_url, clock)
    watch = BudgetWatch(book, path, clock, never)
    watch.step()
    path.write_text("tenants: [")
    post(ledger, usage(1), usage(2))
    with pytest.raises(TermsInvalid):
        watch.step()
    assert book.pending() == []  # without a webhook the log is where they are told
    assert book.raise_due(parse_terms(TERMS)) == []  # raised already
    book.close()


@pytest.mark.parametrize(
    ("webhook", "message"),
    [
        ({"url": "file:///etc/passwd"}, "http"),
        ({"secret_file": "/no/such/file"}, "secret_file"),
        ({"secret_file": "/dev/null"}, "16 bytes"),
    ],
)
def test_a_webhook_that_cannot_be_is_refused(
    webhook: dict[str, object], message: str, clock: Clock
) -> None:
    sound = Webhook(url="http://127.0.0.1:1/", secret_file="/dev/null")
    with pytest.raises(TermsInvalid, match=message):
        WebhookSender(msgspec.structs.replace(sound, **webhook), clock)


@pytest.mark.parametrize(
    ("yaml", "message"),
    [
        ("tenants: {acme: {time_zone: Mars/Olympus}}", "time zone"),
        ("tenants: {'No Tenant': {}}", "tenant id"),
        ("tenants: {acme: {budgets: [{name: a, period: week, usd: '1'}]}}", "period"),
        ("tenants: {acme: {budgets: [{name: a, period: day, usd: 1}]}}", "usd"),
        ("tenants: {acme: {budgets: [{name: a, period: day, usd: 'x'}]}}", "usd as text"),
        ("tenants: {acme: {budgets: [{name: a, period: day, usd: '0'}]}}", "usd as text"),
        ("tenants: {acme: {budgets: [{name: a, period: day, usd: '1e99'}]}}", "usd as text"),
        (
            "tenants: {acme: {budgets: [{name: a, period: day, usd: '1'}, "
            "{name: a, period: day, usd: '1'}]}}",
            "stands twice",
        ),
        ("tenants: {acme: {budgets: [{name: März, period: day, usd: '1'}]}}", "name"),
        ('tenants: {acme: {budgets: [{name: "a\\n", period: day, usd: "1"}]}}', "name"),
        ("tenant: {}", "unknown field"),
        ("a: [", "terms"),
    ],
)
def test_unsound_terms_are_refused_with_the_reason(yaml: str, message: str) -> None:
    with pytest.raises(TermsInvalid, match=message):
        parse_terms(yaml)


def test_no_terms_are_terms(tmp_path: Path) -> None:
    assert read_terms(None) == read_terms(tmp_path / "none.yaml") == parse_terms("") == NO_TERMS
    assert NO_TERMS.of("anyone").time_zone == "UTC"
