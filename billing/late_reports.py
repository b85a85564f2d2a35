"""What a gateway says after all of a request that an auditor had posted in its place.

The event in the ledger stays as it is.  What the gateway knew better, its own number, the key and
perhaps other tokens, is kept beside it; a difference in money is a correction, a line of its own.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection, insert, select

from billing.bulk_insert import rows_by_key
from billing.daily_usage import replace_event
from billing.invoice import LineKind
from billing.late import latest_invoices
from billing.ledger_schema import (
    ENTRIES_OF_EVENTS,
    adjustments,
    late_reports,
    microseconds,
    unpriced_events,
    usage_events,
)
from billing.posting import Posting
from billing.pricing import TokenClass
from billing.rating import Charge, charged_tokens
from billing.recorded_prices import recorded_rates
from billing.records import EventKey
from contracts.usage import UsageEvent, decode_usage_event

_CORRECTION: Final = "late-report/"  # an adjustment's id, before its event's


@dataclass(frozen=True, slots=True)
class LateReport:
    recovered: UsageEvent  # as the auditor has posted it
    posting: Posting  # as its gateway tells it

    @property
    def key(self) -> EventKey:
        return self.recovered.tenant_id, self.recovered.event_id


def post_late_reports(
    connection: Connection, reports: Sequence[LateReport], posted_at_us: int
) -> list[Posting]:
    """Those that do not stand: of a request that has another one, from before or among these.

    Nor does one whose difference in money nobody knows yet.  Nobody else may post meanwhile.
    """
    keys = {report.key for report in reports}
    waiting, rates = _waiting(connection, keys), recorded_rates(connection)
    kept, entries = reported_events(connection, keys), _entries(connection, keys)
    refused: list[Posting] = []
    for report in reports:
        key, event = report.key, report.posting.event
        if key in kept:
            if kept[key] != event:
                refused.append(report.posting)
            continue
        charged = None if key in waiting else entries.get(key, ())
        told = _charges_told(report, charged, rates)
        if told is None:
            refused.append(report.posting)
            continue
        difference = sum(c.pico_usd for c in told) - sum(c.pico_usd for c in charged or ())
        _post(connection, report, difference, posted_at_us)
        replace_event(
            connection,
            (report.recovered, () if charged is None else charged),
            (event, told),
        )
        kept[key] = event
    return refused


def _charges_told(
    report: LateReport, charged: Sequence[Charge] | None, rates: Mapping[str, Mapping[str, int]]
) -> Sequence[Charge] | None:
    """What its gateway's report is worth; None: nobody knows yet.  ``charged`` None: it waits.

    By the price it has been charged by, though its adapter may have got one of its own since.
    """
    event, charges = report.posting.event, report.posting.charges
    if charged is None:
        return () if _has_same_tokens(report) else None
    if charged and _has_same_price(report):
        price_id = charged[0].price_id
        if price_id in rates:
            return _rated(event, price_id, rates[price_id])
    if charges is None:
        return charged if _has_same_tokens(report) else None
    return charges


def _rated(event: UsageEvent, price_id: str, rates: Mapping[str, int]) -> list[Charge]:
    return [
        Charge(token_class, tokens, tokens * rates[token_class.value], price_id)
        for token_class, tokens in charged_tokens(event).items()
        if tokens > 0
    ]


def _has_same_price(report: LateReport) -> bool:
    told, recovered = report.posting.event, report.recovered
    return (told.model, told.adapter_of, told.tier) == (
        recovered.model,
        recovered.adapter_of,
        recovered.tier,
    )


def _has_same_tokens(report: LateReport) -> bool:
    return charged_tokens(report.posting.event) == charged_tokens(report.recovered)


def _post(
    connection: Connection, report: LateReport, difference_pico_usd: int, posted_at_us: int
) -> None:
    event, recovered = report.posting.event, report.recovered
    row = {
        "tenant_id": recovered.tenant_id,
        "event_id": recovered.event_id,
        "gateway_boot_id": event.gateway_boot_id,
        "gateway_seq": event.gateway_seq,
        "more_tokens": event.total_tokens - recovered.total_tokens,
        "posted_at_us": posted_at_us,
        "payload": report.posting.payload,
    }
    connection.execute(insert(late_reports), row)
    post_difference(connection, recovered, difference_pico_usd, posted_at_us)


def post_difference(
    connection: Connection, recovered: UsageEvent, difference_pico_usd: int, posted_at_us: int
) -> None:
    """Between what its entries charge and what its gateway's report is worth; 0 is no line."""
    if difference_pico_usd == 0:
        return
    occurred_at_us = microseconds(recovered.occurred_at)
    late = latest_invoices(connection, [recovered.tenant_id])
    correction = {
        "tenant_id": recovered.tenant_id,
        "adjustment_id": _CORRECTION + recovered.event_id,
        "kind": (LineKind.CREDIT if difference_pico_usd < 0 else LineKind.CORRECTION).value,
        "event_id": recovered.event_id,
        "occurred_at_us": occurred_at_us,
        "posted_at_us": posted_at_us,
        "pico_usd": difference_pico_usd,
        "reason": "its gateway reported it after it had been recovered",
        "late_after_invoice": late.number_after(recovered.tenant_id, occurred_at_us),
    }
    connection.execute(insert(adjustments), correction)


def reported_events(
    connection: Connection, keys: Collection[EventKey]
) -> dict[EventKey, UsageEvent]:
    """Of recovered events, as their gateways have told them."""
    query = select(late_reports.c.tenant_id, late_reports.c.event_id, late_reports.c.payload)
    rows = rows_by_key(connection, query, late_reports, keys)
    return {
        (tenant_id, event_id): decode_usage_event(payload) for tenant_id, event_id, payload in rows
    }


def _entries(connection: Connection, keys: set[EventKey]) -> Mapping[EventKey, list[Charge]]:
    found: dict[EventKey, list[Charge]] = {}
    for row in rows_by_key(connection, ENTRIES_OF_EVENTS, usage_events, keys):
        charge = Charge(TokenClass(row.token_class), row.tokens, row.pico_usd, row.price_id)
        found.setdefault((row.tenant_id, row.event_id), []).append(charge)
    return found


def _waiting(connection: Connection, keys: set[EventKey]) -> set[EventKey]:
    query = select(unpriced_events.c.tenant_id, unpriced_events.c.event_id)
    return {(row[0], row[1]) for row in rows_by_key(connection, query, unpriced_events, keys)}


def late_corrections(connection: Connection) -> Mapping[str, int]:
    """Pico-dollars by tenant, of all late reports: days have them, and entries do not."""
    columns = adjustments.c
    query = select(columns.tenant_id, columns.pico_usd).where(
        columns.adjustment_id == _CORRECTION + columns.event_id
    )
    found: Counter[str] = Counter()
    for tenant_id, pico_usd in connection.execute(query):
        found[tenant_id] += pico_usd
    return found


def late_numbers(connection: Connection) -> list[tuple[str, int]]:
    """(boot id, number) of each report: its event in the ledger bears others."""
    query = select(late_reports.c.gateway_boot_id, late_reports.c.gateway_seq)
    return [(boot_id, number) for boot_id, number in connection.execute(query)]
