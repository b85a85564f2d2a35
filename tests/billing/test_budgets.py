"""Each threshold alerts once a period, signed, and to whoever the terms name."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from billing.alert_topic import AlertTopic
from billing.alert_watches import BudgetWatch, ChannelWatch, Send, to_nobody, to_webhook
from billing.alerts import Alert, AlertBook, Channel
from billing.budgets import days_of
from billing.errors import AlertTopicUnavailable, TermsInvalid, WebhookFailed
from billing.ledger import Ledger
from billing.posting import rate_batch
from billing.terms import NO_TERMS, BudgetPeriod, parse_terms, read_terms
from billing.webhook import signature
from contracts.usage import UsageEvent
from tests.billing.usage_events import BOOK, NOON, batch_of, usage
from tests.billing.webhook_receiver import SECRET, Receiver
from tests.support.ports import free_port

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
    assert book.pending(Channel.WEBHOOK) == raised
    book.mark_delivered(raised[0], Channel.WEBHOOK)
    book.mark_delivered(raised[0], Channel.WEBHOOK)
    assert book.pending(Channel.WEBHOOK) == raised[1:]
    assert book.pending(Channel.TOPIC) == raised
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


class Watches:
    """All that billing runs of a terms' budgets, one after the other."""

    def __init__(
        self,
        book: AlertBook,
        terms_path: Path,
        clock: Clock,
        is_stopping: Callable[[], bool] = never,
        topic: Send = to_nobody,
    ) -> None:
        budgets = BudgetWatch(book, terms_path)
        self._budgets = budgets
        self.webhook = ChannelWatch(
            book, Channel.WEBHOOK, lambda: to_webhook(budgets.terms, clock), is_stopping
        )
        self.topic = ChannelWatch(book, Channel.TOPIC, lambda: topic, is_stopping)

    def step(self) -> None:
        try:
            self._budgets.step()
        finally:
            self.webhook.step()


def test_alerts_are_told_signed_and_again_until_they_are_taken(
    ledger: Ledger, ledger_url: str, clock: Clock, receiver: Receiver, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_bytes(SECRET + b"\n")
    hook = f"webhook: {{url: '{receiver.url}', secret_file: '{tmp_path / 'secret'}'}}\n"
    (tmp_path / "terms.yaml").write_text(hook + TERMS)
    post(ledger, usage(1), usage(2))
    book = AlertBook(ledger_url, clock)
    watch = Watches(book, tmp_path / "terms.yaml", clock)
    receiver.status = 503
    with pytest.raises(WebhookFailed):
        watch.step()
    assert len(book.pending(Channel.WEBHOOK)) == 2
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
    watch = Watches(book, tmp_path / "terms.yaml", clock)
    with pytest.raises(WebhookFailed, match="422"):
        watch.step()
    assert [alert.threshold_percent for alert in book.pending(Channel.WEBHOOK)] == [50]
    book.close()


@pytest.mark.parametrize("status", [503, 422])
def test_a_webhook_that_fails_keeps_nothing_from_the_topic(
    ledger: Ledger,
    ledger_url: str,
    clock: Clock,
    receiver: Receiver,
    tmp_path: Path,
    status: int,
) -> None:
    (tmp_path / "terms.yaml").write_text(hooked(receiver, tmp_path))
    post(ledger, usage(1), usage(2))
    told: list[Alert] = []
    book = AlertBook(ledger_url, clock)
    watch = Watches(book, tmp_path / "terms.yaml", clock, topic=told.append)
    receiver.status = status
    with pytest.raises(WebhookFailed):
        watch.step()
    watch.topic.step()
    with pytest.raises(WebhookFailed):
        watch.step()
    watch.topic.step()
    assert [alert.threshold_percent for alert in told] == [50, 80]
    book.close()


def test_brokers_that_are_away_have_no_alert_sent_twice_to_the_webhook(
    ledger: Ledger, ledger_url: str, clock: Clock, receiver: Receiver, tmp_path: Path
) -> None:
    (tmp_path / "terms.yaml").write_text(hooked(receiver, tmp_path))
    post(ledger, usage(1), usage(2))
    gone = AlertTopic(lambda: {"bootstrap_servers": f"127.0.0.1:{free_port()}"}, "alerts")
    book = AlertBook(ledger_url, clock)
    watch = Watches(
        book,
        tmp_path / "terms.yaml",
        clock,
        topic=lambda alert: gone.send(alert.alert_id, alert.tenant_id, alert.document),
    )
    for _ in range(2):
        watch.step()
        with pytest.raises(AlertTopicUnavailable):
            watch.topic.step()
    assert len(receiver.calls) == len(book.pending(Channel.TOPIC)) == 2
    book.close()


def test_alerts_wait_until_terms_were_read_and_go_where_the_last_good_ones_say(
    ledger: Ledger, ledger_url: str, clock: Clock, receiver: Receiver, tmp_path: Path
) -> None:
    """Marked as told by nobody they would be lost."""
    path = tmp_path / "terms.yaml"
    post(ledger, usage(1), usage(2))
    book = AlertBook(ledger_url, clock)
    book.raise_due(parse_terms(TERMS))  # before a restart
    watch = Watches(book, path, clock)
    watch.step()
    path.write_text("tenants: [")
    with pytest.raises(TermsInvalid):
        watch.step()
    assert len(book.pending(Channel.WEBHOOK)) == 2
    path.write_text(hooked(receiver, tmp_path))
    receiver.status = 503
    with pytest.raises(WebhookFailed):
        watch.step()
    path.unlink()
    receiver.status = 200
    watch.step()
    assert book.pending(Channel.WEBHOOK) == []
    assert len(receiver.calls) == 4
    book.close()


def test_a_watch_that_is_to_stop_tells_no_more(
    ledger: Ledger, ledger_url: str, clock: Clock, receiver: Receiver, tmp_path: Path
) -> None:
    (tmp_path / "terms.yaml").write_text(hooked(receiver, tmp_path))
    post(ledger, usage(1), usage(2))
    book = AlertBook(ledger_url, clock)
    Watches(book, tmp_path / "terms.yaml", clock, lambda: bool(receiver.calls)).step()
    assert [alert.threshold_percent for alert in book.pending(Channel.WEBHOOK)] == [80]
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
    watch = Watches(book, path, clock)
    watch.step()
    path.write_text("tenants: [")
    post(ledger, usage(1), usage(2))
    with pytest.raises(TermsInvalid):
        watch.step()
    assert book.pending(Channel.WEBHOOK) == []  # without a webhook the log is where they are told
    assert book.raise_due(parse_terms(TERMS)) == []  # raised already
    book.close()


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
