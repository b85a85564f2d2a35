"""The local fleet's way from an event to money: spool, billing and ledger."""

import shutil
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Final

from billing.auditor import AuditReport
from billing.errors import BillingError
from billing.ledger_database import open_for_reading, translated_errors
from billing.ledger_upgrade import REVISION, stored_revision
from billing.reconciliation import AuditRules
from billing.segment_file import segment_names
from billing.unpriced import unpriced_models
from pandal.audit import run_audit, sources_of
from pandal.bill import HOW_TO_PRICE
from pandal.doctor.finding import Finding, failure, fine, warning
from pandal.errors import PandalError
from pandal.fleet import BILLING
from pandal.fleet_books import FleetBooks, translated
from pandal.fleet_record import FleetState
from pandal.processes import is_alive
from pandal.settings import CommandSettings

_RULES: Final = AuditRules(
    grace=timedelta(seconds=5), patience_s=3.0, span=timedelta(hours=1), recovers=False
)


def books_findings(books: FleetBooks, fleet: FleetState | None) -> Iterator[Finding]:
    """``fleet``: None where none runs.  Blocks for a few seconds where accounts move."""
    yield from spool_findings(books.data_dir.spool, time.time())
    if not books.data_dir.ledger.is_file():
        yield from _billing(books, fleet, None)
        return
    try:
        revision = _revision(books.ledger_url)
    except BillingError as exc:
        yield failure("ledger", str(exc), "see that its disk and its folder can be read")
        return
    if revision != REVISION:
        fact = f"it is of revision {revision}, and this version's is {REVISION}"
        yield warning("ledger", fact, "billing brings it up to date as it starts: pandal up")
        return
    try:
        settings = CommandSettings()
        report = run_audit(books, sources_of(books, settings.price_book, settings), _RULES)
        with translated(books):
            models = unpriced_models(books.ledger_url)
    except PandalError as exc:
        yield failure("ledger", str(exc), "pandal audit reads all of it")
        return
    yield from _billing(books, fleet, report, models)
    yield from ledger_findings(report, revision)


def spool_findings(folder: Path, now_s: float) -> Iterator[Finding]:
    segments = [folder / name for name in segment_names(folder)]
    if not segments:
        return
    sizes, ages_s = [], []
    for segment in segments:
        try:
            status = segment.stat()
        except FileNotFoundError:  # billing removes what is booked
            continue
        sizes.append(status.st_size)
        ages_s.append(now_s - status.st_mtime)
    free_bytes = shutil.disk_usage(folder).free
    oldest = f", the oldest written {_span(max(ages_s))} ago" if ages_s else ""
    yield fine(
        "spool",
        f"{sum(sizes) / 1e6:.1f} MB, segments: {len(sizes)}{oldest}; "
        f"{free_bytes / 1e9:.1f} GB are free there",
    )


def ledger_findings(report: AuditReport, revision: str) -> Iterator[Finding]:
    about, num_found = "ledger", len(report.findings)
    if num_found:
        names = ", ".join(sorted({finding.kind.value for finding in report.findings}))
        fact = f"it differs from engine, quota or events in {num_found} places ({names})"
        yield failure(about, fact, "pandal audit tells where; docs/runbooks/PandalBooksDiffer.md")
    for segment in report.unreadable_segments:
        fact = f"the spool's segment {segment} cannot be read"
        yield failure(about, fact, "restore it, or see docs/runbooks/PandalBooksDiffer.md")
    if report.num_dead_letters:
        fact = f"{report.num_dead_letters} events could not be understood"
        yield warning(about, fact, "pandal billing replay, once they can")
    if not num_found and not report.unreadable_segments:
        num = len(report.accounts)
        tenants = "1 tenant" if num == 1 else f"{num} tenants"
        fact = f"revision {revision}; engine, quota, events and ledger of {tenants} agree"
        yield fine(about, fact)


def _billing(
    books: FleetBooks,
    fleet: FleetState | None,
    report: AuditReport | None,
    models: Sequence[str] = (),
) -> Iterator[Finding]:
    """``models``: those without a price."""
    about = "billing"
    num_waiting = 0 if report is None else report.num_waiting
    if report is not None and report.num_unpriced:
        fact = f"{report.num_unpriced} events have no price ({', '.join(models)})"
        yield warning(about, fact, HOW_TO_PRICE)
    if fleet is None:
        if num_waiting:
            yield warning(about, f"{num_waiting} events wait for it", "pandal up books them")
        return
    process = fleet.children.get(BILLING)
    if process is None or not is_alive(process):
        yield failure(about, "it does not run", f"its log is in {books.data_dir.log(BILLING)}")
    elif num_waiting:
        fact = f"it runs, and {num_waiting} events wait for it"
        yield warning(about, fact, "look again: it books within a second, unless its log tells why")
    else:
        yield fine(about, "it runs, and has booked all that is written")


def _revision(ledger_url: str) -> str | None:
    engine = open_for_reading(ledger_url)
    try:
        with translated_errors(), engine.begin() as connection:
            return stored_revision(connection)
    finally:
        engine.dispose()


def _span(seconds: float) -> str:
    if seconds < 120:
        return f"{max(seconds, 0):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
