"""Every entry is on exactly one invoice, which never changes; late usage says when it was."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from billing.errors import InvoiceRefused
from billing.invoice import Invoice, LineKind
from billing.invoicing import DEFAULT_GRACE, Adjustment, Invoicing, issued
from billing.ledger import Ledger, PostResult
from billing.lookup import totals
from billing.posting import rate_batch
from billing.pricing import Price, PriceBook
from contracts.usage import UsageEvent
from tests.billing.databases import execute
from tests.billing.usage_events import BOOK, PRICE, batch_of, usage

CENT = 10**10
OCTOBER = datetime(2026, 10, 15, tzinfo=UTC)
NOVEMBER = datetime(2026, 11, 15, tzinfo=UTC)
DECEMBER = datetime(2026, 12, 15, tzinfo=UTC)


class Office:
    """A ledger, its invoices, and a clock that the test moves."""

    def __init__(self, ledger: Ledger, ledger_url: str) -> None:
        self.ledger, self.ledger_url = ledger, ledger_url
        self.now = datetime(2026, 12, 1, 2, tzinfo=UTC)  # November's grace is just over
        self.invoicing = Invoicing(ledger_url, lambda: self.now)
        self._next: int | None = None

    def post(self, *events: UsageEvent, book: PriceBook = BOOK) -> PostResult:
        batch = batch_of(list(events), first=self._next)
        result = self.ledger.post(rate_batch(batch, book))
        self._next = batch.next_offset
        return result

    def close(self, month: str, time_zone: str = "UTC") -> Invoice:
        return self.invoicing.close_month("acme", month, time_zone=time_zone)

    def adjust(self, pico_usd: int, occurred_at: datetime = NOVEMBER, name: str = "a1") -> bool:
        kind = LineKind.CREDIT if pico_usd < 0 else LineKind.CORRECTION
        return self.invoicing.adjust(
            Adjustment("acme", name, kind, occurred_at, pico_usd, "an outage")
        )


@pytest.fixture
def office(either: Ledger, either_url: str) -> Iterator[Office]:
    office = Office(either, either_url)
    yield office
    office.invoicing.close()


def usage_at(number: int, at: datetime, **changes: object) -> UsageEvent:
    return usage(number, occurred_at=at, **changes)


def shown(invoice: Invoice) -> list[tuple[str, str, int]]:
    return [(line.kind.value, line.service_month, line.tokens) for line in invoice.lines]


def exact(invoice: Invoice) -> int:
    return sum(line.pico_usd for line in invoice.lines)


def test_an_invoice_is_what_the_month_used_line_by_line(office: Office) -> None:
    office.post(*(usage_at(n, NOVEMBER) for n in range(10)), usage_at(99, DECEMBER))
    invoice = office.close("2026-11")
    assert shown(invoice) == [
        ("usage", "2026-11", 640),
        ("usage", "2026-11", 360),
        ("usage", "2026-11", 70),
    ]
    assert exact(invoice) == 10 * 232_200_007
    document = issued(office.ledger_url, "acme", "2026-11")
    assert document is not None
    assert document == invoice.to_json()
    assert msgspec.json.decode(document)["total_usd"] == "0.00"
    assert issued(office.ledger_url, "acme", "2026-12") is None


def test_a_month_is_closed_after_its_end_and_grace_and_once(office: Office) -> None:
    office.now = datetime(2026, 12, 1, tzinfo=UTC) + DEFAULT_GRACE - timedelta(seconds=1)
    with pytest.raises(InvoiceRefused, match="can be closed from 2026-12-01 02:00"):
        office.close("2026-11")
    office.now += timedelta(seconds=1)
    assert office.close("2026-11").number == 1
    with pytest.raises(InvoiceRefused, match="expected the month after 2026-11"):
        office.close("2026-11")


def test_months_are_closed_in_order(office: Office) -> None:
    office.post(usage_at(1, OCTOBER), usage_at(2, NOVEMBER))
    with pytest.raises(InvoiceRefused, match="the ledger has usage of 2026-10"):
        office.close("2026-11")
    office.close("2026-10")
    office.now = datetime(2027, 1, 2, tzinfo=UTC)
    with pytest.raises(InvoiceRefused, match="expected the month after 2026-10"):
        office.close("2026-12")
    assert office.close("2026-11").number == 2


def test_what_comes_within_the_grace_is_in_time(office: Office) -> None:
    office.now = datetime(2026, 12, 1, 1, 59, tzinfo=UTC)
    office.post(usage_at(1, NOVEMBER))
    office.now = datetime(2026, 12, 1, 2, tzinfo=UTC)
    assert {line.kind for line in office.close("2026-11").lines} == {LineKind.USAGE}


def test_what_comes_later_is_on_the_next_with_its_own_month(office: Office) -> None:
    office.post(usage_at(1, NOVEMBER))
    before = office.close("2026-11").to_json()
    assert office.post(usage_at(2, NOVEMBER), usage_at(3, DECEMBER)).num_late == 1
    office.now = datetime(2027, 1, 1, 2, tzinfo=UTC)
    december = office.close("2026-12")
    assert {(kind, month) for kind, month, _ in shown(december)} == {
        ("usage", "2026-12"),
        ("late usage", "2026-11"),
    }
    assert issued(office.ledger_url, "acme", "2026-11") == before
    office.post(usage_at(4, NOVEMBER), usage_at(5, OCTOBER))
    office.now = datetime(2027, 2, 1, 2, tzinfo=UTC)
    assert {(kind, month) for kind, month, _ in shown(office.close("2027-01"))} == {
        ("late usage", "2026-11"),
        ("late usage", "earlier"),
    }


def test_an_event_that_gets_its_price_after_the_close_is_late_as_well(office: Office) -> None:
    office.post(usage_at(1, NOVEMBER, model="new"))
    november = office.close("2026-11")
    assert (november.lines, november.num_unpriced) == ((), 1)
    new = Price("new.1", "new", PRICE.effective_from, None, PRICE.usd_per_million_tokens)
    book = PriceBook([PRICE, new])
    office.ledger.record_prices(book)
    office.ledger.post_unpriced(book)
    office.now = datetime(2027, 1, 1, 2, tzinfo=UTC)
    assert {kind for kind, *_ in shown(office.close("2026-12"))} == {"late usage"}


def test_a_credit_is_a_line_and_what_is_left_of_it_is_carried_over(office: Office) -> None:
    office.post(usage_at(1, NOVEMBER))
    office.adjust(-5 * CENT)
    november = office.close("2026-11")
    assert november.total_cents == 0
    assert november.carried_pico_usd == 232_200_007 - 5 * CENT
    office.now = datetime(2027, 1, 1, 2, tzinfo=UTC)
    office.adjust(8 * CENT, DECEMBER, "a2")
    december = office.close("2026-12")
    assert exact(december) == 3 * CENT + 232_200_007
    assert december.total_cents == sum(line.cents for line in december.lines) == 3
    assert [kind for kind, *_ in shown(december)] == ["credit carried over", "correction"]


def test_an_adjustment_counts_once_and_a_late_one_is_on_the_next(office: Office) -> None:
    office.close("2026-11")
    assert [office.adjust(7 * CENT) for _ in range(2)] == [True, False]
    with pytest.raises(InvoiceRefused, match="another amount"):
        office.adjust(8 * CENT)
    office.now = datetime(2027, 1, 1, 2, tzinfo=UTC)
    december = office.close("2026-12")
    assert shown(december) == [("correction", "2026-11", 0)]
    assert december.total_cents == 7


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({"pico_usd": 0}, "not zero"),
        ({"pico_usd": 2**63}, "9.2 million"),
        ({"kind": LineKind.CREDIT}, "less than nothing"),
        ({"kind": LineKind.USAGE}, "correction or a credit"),
        ({"reason": ""}, "a reason"),
        ({"reason": "a\nb"}, "printable"),
        ({"reason": "r" * 501}, "printable"),
        ({"event_id": "none"}, "no event"),
    ],
)
def test_an_adjustment_that_makes_no_sense_is_refused(
    office: Office, fault: dict[str, object], message: str
) -> None:
    sound: dict[str, object] = {
        "tenant_id": "acme",
        "adjustment_id": "a1",
        "kind": LineKind.CORRECTION,
        "occurred_at": NOVEMBER,
        "pico_usd": CENT,
        "reason": "r",
    }
    with pytest.raises(InvoiceRefused, match=message):
        office.invoicing.adjust(Adjustment(**{**sound, **fault}))  # type: ignore[arg-type]


@pytest.mark.parametrize("table", ["invoices", "adjustments"])
def test_neither_invoices_nor_adjustments_can_be_changed(office: Office, table: str) -> None:
    office.adjust(CENT)
    office.close("2026-11")
    with pytest.raises(Exception, match=f"{table} is append-only"):
        execute(office.ledger_url, f"DELETE FROM {table}")


def test_a_tenant_that_moves_to_another_zone_pays_each_instant_once(office: Office) -> None:
    """Ten hours of 30 November in UTC are 1 December in Kiritimati already."""
    seam = datetime(2026, 11, 30, 12, tzinfo=UTC)
    office.post(usage_at(1, seam), usage_at(2, datetime(2026, 12, 31, 12, tzinfo=UTC)))
    november = office.close("2026-11")
    office.now = datetime(2027, 2, 1, tzinfo=UTC)
    december = office.close("2026-12", "Pacific/Kiritimati")
    assert december.period.begins_at == november.period.ends_at
    assert december.period.ends_at == datetime(2026, 12, 31, 10, tzinfo=UTC)
    january = office.close("2027-01", "Pacific/Kiritimati")
    assert [len(invoice.lines) for invoice in (november, december, january)] == [3, 0, 3]


moments = st.datetimes(
    min_value=datetime(2026, 10, 1),  # noqa: DTZ001 - hypothesis takes them naive
    max_value=datetime(2027, 1, 31),  # noqa: DTZ001 - as above
    timezones=st.just(UTC),
)


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(st.tuples(moments, st.integers(0, 4)), max_size=25),
    st.sampled_from(["UTC", "Europe/Paris", "Pacific/Kiritimati", "America/Denver"]),
)
def test_invoices_and_what_is_open_sum_to_the_ledger(
    tmp_path_factory: pytest.TempPathFactory, posted: list[tuple[datetime, int]], zone: str
) -> None:
    """Whatever is posted before or after whichever close."""
    url = f"sqlite:///{tmp_path_factory.mktemp('books') / 'ledger.db'}"
    ledger = Ledger(url)
    ledger.record_prices(BOOK)
    office = Office(ledger, url)
    billed = 0
    months = ["2026-09", "2026-10", "2026-11", "2026-12", "2027-01", "2027-02"]
    office.now = datetime(2027, 4, 1, tzinfo=UTC)
    for turn, month in enumerate(months):
        office.post(*(usage_at(n, at) for n, (at, when) in enumerate(posted) if when == turn))
        invoice = office.close(month, zone)
        billed += exact(invoice)
        assert invoice.total_cents * CENT - exact(invoice) in range(-CENT // 2, CENT // 2 + 1)
    assert billed == totals(url, "acme").pico_usd == len(posted) * 232_200_007
    office.invoicing.close()
    ledger.close()
