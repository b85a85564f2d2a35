"""The local fleet's way from an event to money: spool, billing and ledger."""

import shutil
import time
from collections.abc import Collection, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Final

from billing.auditor import Accounts, AuditReport, Part
from billing.errors import BillingError
from billing.ledger_database import open_for_reading, translated_errors
from billing.ledger_upgrade import REVISION, stored_revision
from billing.reconciliation import AuditRules
from billing.segment_file import segment_names
from billing.unpriced import unpriced_models
from pandal.audit import run_audit, sources_of
from pandal.bill import HOW_TO_PRICE
from pandal.doctor.finding import Finding, failure, fine, warning
from pandal.doctor.spans import span
from pandal.errors import PandalError
from pandal.fleet import BILLING
from pandal.fleet_books import FleetBooks, translated
from pandal.fleet_record import FleetState
from pandal.processes import is_alive
from pandal.settings import KAFKA_BOOTSTRAP, told_settings

_RULES: Final = AuditRules(
    grace=timedelta(seconds=5),
    patience_s=3.0,
    span=timedelta(hours=1),
    is_counted=False,
    recovers=False,
)


def books_findings(books: FleetBooks, fleet: FleetState | None) -> Iterator[Finding]:
    """``fleet``: None where none runs.  Blocks for a few seconds where accounts move."""
    yield from spool_findings(books.data_dir.spool, time.time())
    if not books.data_dir.ledger.is_file():
        yield from billing_findings(books, fleet, None)
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
        settings = told_settings()
        sources = sources_of(books, settings.price_book, settings)
        report = run_audit(books, sources, _RULES)
        with translated(books):
            models = unpriced_models(books.ledger_url)
    except PandalError as exc:
        yield failure("ledger", str(exc), "pandal audit reads all of it")
        return
    yield from billing_findings(books, fleet, report, models)
    not_compared = report.not_compared(has_quota_store=sources.quota_url is not None)
    yield from ledger_findings(report, not_compared, revision)


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
    oldest = f", the oldest written {span(max(ages_s))} ago" if ages_s else ""
    yield fine(
        "spool",
        f"{sum(sizes) / 1e6:.1f} MB, segments: {len(sizes)}{oldest}; "
        f"{free_bytes / 1e9:.1f} GB are free there",
    )


def ledger_findings(
    report: AuditReport, not_compared: Sequence[Part], revision: str
) -> Iterator[Finding]:
    """That accounts agree is told only where all that should have been asked could be."""
    about, num_found = "ledger", len(report.findings)
    if num_found:
        names = ", ".join(sorted({finding.kind.value for finding in report.findings}))
        fact = f"it differs from engine, quota or events in {num_found} places ({names})"
        yield failure(about, fact, "pandal audit tells where; docs/runbooks/PandalBooksDiffer.md")
    for segment in report.unreadable_segments:
        fact = f"the spool's segment {segment} cannot be read"
        yield failure(about, fact, "restore it, or see docs/runbooks/PandalBooksDiffer.md")
    if report.num_unreadable:
        fact = f"{report.num_unreadable} lines of the spool cannot be read, and were not compared"
        yield warning(about, fact, "docs/runbooks/PandalBooksDiffer.md")
    if report.num_dead_letters:
        fact = f"{report.num_dead_letters} events could not be understood"
        yield warning(about, fact, "pandal billing replay, once they can")
    if Part.QUOTA in not_compared:
        yield warning(about, "the quota's totals were not compared: its store is away", "pandal up")
    if Part.BROKERS in not_compared:
        fact = "Kafka could not be asked for what is on its way: what has come was compared"
        yield warning(about, fact, f"see that brokers answer at {KAFKA_BOOTSTRAP}")
    if report.unsure:
        fact = f"{len(report.unsure)} requests were served and are not billed: they may still come"
        yield warning(about, fact, "look again; pandal audit tells more")
    if not (num_found or not_compared or report.unsure):
        yield fine(about, f"revision {revision}; {_agreement(report.accounts.values())}")


def _agreement(accounts: Collection[Accounts]) -> str:
    """Of what was compared, and of nothing else."""
    if not accounts:
        return "no tenant has an account in it yet"
    engine = ["engine"] if all(each.engine is not None for each in accounts) else []
    quota = ["quota"] if all(each.quota is not None for each in accounts) else []
    tenants = "1 tenant" if len(accounts) == 1 else f"{len(accounts)} tenants"
    return f"{', '.join([*engine, *quota, 'events'])} and ledger of {tenants} agree"


def billing_findings(
    books: FleetBooks,
    fleet: FleetState | None,
    report: AuditReport | None,
    models: Sequence[str] = (),
) -> Iterator[Finding]:
    """``models``: those without a price."""
    about = "billing"
    waiting = "" if report is None else _waiting(report)
    if report is not None and report.num_unpriced:
        fact = f"{report.num_unpriced} events have no price ({', '.join(models)})"
        yield warning(about, fact, HOW_TO_PRICE)
    if fleet is None:
        if waiting:
            yield warning(about, waiting, "pandal up books what waits")
        return
    process = fleet.children.get(BILLING)
    if process is None or not is_alive(process):
        yield failure(about, "it does not run", f"its log is in {books.data_dir.log(BILLING)}")
    elif waiting:
        advice = "look again: it books within a second, unless its log tells why"
        yield warning(about, f"it runs, and {waiting}", advice)
    else:
        more = "" if report is None else ", and has booked all that is written"
        yield fine(about, f"it runs{more}")


def _waiting(report: AuditReport) -> str:
    """What billing has not booked, or nobody knows whether it has; empty: nothing."""
    unread = report.num_unread
    num = report.num_waiting + (0 if unread is None else unread)
    known = [f"{num} events wait for it"] if num else []
    unknown = ["Kafka could not be asked how many wait there"] if unread is None else []
    return ", and ".join([*known, *unknown])


def _revision(ledger_url: str) -> str | None:
    engine = open_for_reading(ledger_url)
    try:
        with translated_errors(), engine.begin() as connection:
            return stored_revision(connection)
    finally:
        engine.dispose()
