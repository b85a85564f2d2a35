"""What billing's alerts are for, caused on a real process: each fires then, and not before."""

import time
from collections.abc import Iterator
from datetime import timedelta

import pytest

from billing.ledger import utc_now
from contracts.metrics import (
    BILLING_DIFFERENCES,
    BILLING_EVENTS,
    BILLING_READ_AT,
    BILLING_RECONCILED_AT,
    BILLING_UNPRICED,
)
from contracts.spool import segment_name
from tests.billing.billing_process import BillingProcess
from tests.billing.test_service import Service
from tests.billing.usage_events import SEGMENT, line, usage, write_segment
from tests.support.alerts import HOUR_S, MINUTE_S, Rules, Watch, asked, rendered_rules, watch
from tests.support.ports import free_port
from tests.support.promql import fires
from tests.support.waiting import eventually


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> Rules:
    return rendered_rules(tmp_path_factory.mktemp("helm"))


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def service(tmp_path_factory: pytest.TempPathFactory) -> Service:
    found = Service(tmp_path_factory.mktemp("billing"))
    found.spool_dir.mkdir()
    return found


@pytest.fixture
def billing(service: Service, port: int) -> Iterator[BillingProcess]:
    """Reads a spool that is empty."""
    interval = {"BILLING_RECONCILE_INTERVAL_S": "0.2"}
    with service.start(BILLING_PORT=str(port), **interval) as billing:
        eventually_told(billing, port, BILLING_READ_AT)
        yield billing
        assert billing.terminate() == 0


def eventually_told(billing: BillingProcess, port: int, told: str) -> None:
    billing.until_log_has("listening")

    def is_told() -> bool:
        return f"\n{told}" in asked(port, "GET", "/metrics").decode()

    eventually(is_told, told)


def watched(port: int) -> Watch:
    """From now on: billing tells times."""
    found = watch(port)
    found.timeline.now_s = time.time()
    return found


def test_a_ledger_that_refuses(
    rules: Rules, service: Service, billing: BillingProcess, port: int
) -> None:
    alert = rules["PandalBillingStopped"]
    service.execute(
        "CREATE TRIGGER broken BEFORE INSERT ON ledger_entries "
        "BEGIN SELECT RAISE(ABORT, 'out of order'); END"
    )
    write_segment(service.spool_dir, SEGMENT, line(usage(1)))
    billing.until_log_has("billing paused")
    found = watched(port)
    found.hold(9 * MINUTE_S)  # it may be over by then
    assert not fires(alert, found.timeline)
    found.hold(8 * MINUTE_S)
    assert fires(alert, found.timeline)


def test_a_model_without_a_price(
    rules: Rules, service: Service, billing: BillingProcess, port: int
) -> None:
    alert, found = rules["PandalEventsUnpriced"], watched(port)
    write_segment(service.spool_dir, SEGMENT, line(usage(1)))
    eventually_told(billing, port, f'{BILLING_EVENTS}{{outcome="posted"}} 1')
    found.hold(10 * MINUTE_S)
    assert not fires(alert, found.timeline)
    with (service.spool_dir / SEGMENT).open("ab") as segment:
        segment.write(line(usage(2, model="new")))
    eventually_told(billing, port, f'{BILLING_EVENTS}{{outcome="unpriced"}} 1')
    found.hold(MINUTE_S)
    assert fires(alert, found.timeline)
    eventually_told(billing, port, f"{BILLING_UNPRICED} 1")
    found.hold(120 * MINUTE_S)  # and as long as it waits
    assert fires(alert, found.timeline)


def test_a_line_that_is_no_event(
    rules: Rules, service: Service, billing: BillingProcess, port: int
) -> None:
    alert, found = rules["PandalDeadLetters"], watched(port)
    write_segment(service.spool_dir, SEGMENT, line(usage(1)))
    eventually_told(billing, port, f'{BILLING_EVENTS}{{outcome="posted"}} 1')
    found.hold(10 * MINUTE_S)
    assert not fires(alert, found.timeline)
    with (service.spool_dir / SEGMENT).open("ab") as segment:
        segment.write(b"deadbeef no event\n")
    eventually_told(billing, port, f'{BILLING_EVENTS}{{outcome="dead"}} 1')
    found.hold(MINUTE_S)
    assert fires(alert, found.timeline)


def test_books_that_differ_until_what_lacks_is_found(
    rules: Rules, service: Service, port: int
) -> None:
    """A gateway's second event lies on a volume that nobody showed."""
    alert, then = rules["PandalBooksDiffer"], utc_now() - timedelta(hours=1)
    first, second, third = (
        line(usage(n, gateway_seq=n, admitted_at=then, occurred_at=then)) for n in (1, 2, 3)
    )
    write_segment(service.spool_dir, SEGMENT, first)
    gap = f'{BILLING_DIFFERENCES}{{kind="sequence gap"}}'
    at_once = {"BILLING_RECONCILE_INTERVAL_S": "0.2", "BILLING_RECONCILE_GRACE_S": "0"}
    with service.start(BILLING_PORT=str(port), **at_once) as billing:
        eventually_told(billing, port, f"{gap} 0")
        found = watched(port)
        found.hold(10 * MINUTE_S)
        assert not fires(alert, found.timeline)
        with (service.spool_dir / SEGMENT).open("ab") as segment:
            segment.write(third)
        eventually_told(billing, port, f"{gap} 1")
        found.hold(MINUTE_S)
        assert fires(alert, found.timeline)
        write_segment(service.spool_dir, segment_name("0a", 1), second)
        eventually_told(billing, port, f"{gap} 0")
        found.hold(MINUTE_S)
        assert not fires(alert, found.timeline)
        assert billing.terminate() == 0


def test_books_that_nobody_compares(
    rules: Rules, service: Service, billing: BillingProcess, port: int
) -> None:
    alert, good = rules["PandalBooksUnchecked"], service.price_book.read_text()
    eventually_told(billing, port, BILLING_RECONCILED_AT)
    service.price_book.write_text("no book")
    billing.until_log_has("a watch of billing fails")
    found = watched(port)
    found.hold(3 * HOUR_S)
    assert not fires(alert, found.timeline)
    found.hold(12 * MINUTE_S)
    assert fires(alert, found.timeline)
    service.price_book.write_text(good)
    billing.until_log_has("accounts compared", times=billing.log().count("accounts compared") + 1)
    found = watched(port)
    found.hold(12 * MINUTE_S)
    assert not fires(alert, found.timeline)


@pytest.mark.parametrize(
    ("alert", "wrong", "outcome"),
    [
        ("PandalDeadLetters", b"deadbeef no event\n", "dead"),
        ("PandalEventsUnpriced", line(usage(1, model="new")), "unpriced"),
    ],
)
def test_what_is_put_aside_before_the_first_scrape(
    rules: Rules, service: Service, port: int, alert: str, wrong: bytes, outcome: str
) -> None:
    """A new process posts what waited within a second; nobody compares the books."""
    write_segment(service.spool_dir, SEGMENT, wrong)
    never = {"BILLING_RECONCILE_INTERVAL_S": "0"}
    with service.start(BILLING_PORT=str(port), **never) as billing:
        eventually_told(billing, port, f'{BILLING_EVENTS}{{outcome="{outcome}"}} 1')
        found = watched(port)
        found.hold(MINUTE_S)
        assert fires(rules[alert], found.timeline)
        found.hold(70 * MINUTE_S)
        assert not fires(rules[alert], found.timeline)
        assert billing.terminate() == 0
