"""``pandal audit``: whether engine, quota, events and ledger of a fleet agree, to the token."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from billing.audit import Account, Finding, Kind
from billing.auditor import Accounts, AuditReport, AuditScope, audit, recover
from billing.errors import QuotaStoreUnavailable
from billing.journals import read_journals
from billing.ledger import Ledger
from billing.lookup import tenants
from billing.price_book_file import read_price_book
from billing.quota_store import settled_accounts
from contracts.names import tenant_id
from pandal.books import translated
from pandal.datadir import DataDir
from pandal.errors import PandalError
from pandal.keys import read_policies
from pandal.unsettled import settle_posted

_LOOK_AGAIN_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class AuditRequest:
    data_dir: DataDir
    price_book: Path | None  # what its fleet bills by; None: the packaged one
    grace_s: float  # until what a replica served must have been billed
    patience_s: float  # for accounts that move while they are read
    hours: float | None  # how far back events are checked one by one; None: all
    recovers: bool


def run_audit(request: AuditRequest) -> AuditReport:
    """Looks again while what may move differs, ``patience_s`` at most.  Raises PandalError."""
    with translated(request.data_dir):
        try:
            report = _patiently(lambda: _look(request), request.patience_s)
            if report.findings and request.recovers:
                _recover(request, report)
                report = _patiently(lambda: _look(request), request.patience_s)
        except OSError as exc:
            raise PandalError(str(exc)) from exc
    return report


def show_report(console: Console, report: AuditReport) -> None:
    console.print(_accounts_table(report.accounts))
    for line in _remarks(report):
        console.print(Text(line))
    if not report.findings:
        console.print(Text("no difference", "bold green"))
        return
    console.print(Text(f"{len(report.findings)} differences", "bold red"))
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("difference", "tenant", "of", "what was found"):
        table.add_column(heading, overflow="fold")
    for finding in report.findings:
        tenant = "-" if finding.tenant_id is None else finding.tenant_id
        table.add_row(finding.kind.value, tenant, finding.subject, finding.detail)
    console.print(table)


def report_json(report: AuditReport) -> bytes:
    document = {
        "agrees": not report.findings,
        "accounts": report.accounts,
        "findings": report.findings,
        "num_waiting": report.num_waiting,
        "num_unreadable": report.num_unreadable,
        "num_dead_letters": report.num_dead_letters,
        "num_unpriced": report.num_unpriced,
        "num_not_by_gateways": report.num_not_by_gateways,
    }
    return msgspec.json.encode(document)


def _patiently(look: Callable[[], AuditReport], patience_s: float) -> AuditReport:
    """What moves is no difference: only what every look has found, until patience ends."""
    give_up_s = time.monotonic() + patience_s
    report = look()
    while any(finding.kind in _MOVING for finding in report.findings):
        if time.monotonic() >= give_up_s:
            return report
        time.sleep(_LOOK_AGAIN_S)
        report = seen_twice(report, look())
    return report


def seen_twice(earlier: AuditReport, later: AuditReport) -> AuditReport:
    """The later report, without what moves and was no difference before."""
    found = {_identity(finding) for finding in earlier.findings}
    findings = [f for f in later.findings if f.kind not in _MOVING or _identity(f) in found]
    return replace(later, findings=findings)


def _identity(finding: Finding) -> tuple[Kind, str | None, str]:
    return finding.kind, finding.tenant_id, finding.subject


_MOVING: Final = frozenset({Kind.QUOTA_DIFFERS, Kind.SEQUENCE_GAP, Kind.NO_WITNESS})


def _look(request: AuditRequest) -> AuditReport:
    data_dir = request.data_dir
    now = datetime.now(UTC)
    scope = AuditScope(
        spool_dir=data_dir.spool,
        quota=lambda: _quota(data_dir),
        witnesses=lambda: read_journals(data_dir.usage_journals),
        since=None if request.hours is None else now - timedelta(hours=request.hours),
        grace=timedelta(seconds=request.grace_s),
    )
    return audit(data_dir.ledger_url, read_price_book(request.price_book), scope, now=now)


def _quota(data_dir: DataDir) -> Mapping[str, Account] | None:
    """Of all tenants that a policy or the ledger names."""
    named = {policy.tenant_id for policy in read_policies(data_dir.policies).tenants}
    known = named | {tenant_id(name) for name in tenants(data_dir.ledger_url)}
    try:
        return settled_accounts(_quota_url(data_dir), known)
    except QuotaStoreUnavailable:
        return None


def _quota_url(data_dir: DataDir) -> str:
    return f"unix://{data_dir.sockets / 'quota.sock'}"


def _recover(request: AuditRequest, report: AuditReport) -> None:
    """Posts what nobody billed, then tells the quota what nobody settled."""
    url = request.data_dir.ledger_url
    if report.missing:
        price_book = read_price_book(request.price_book)
        with closing(Ledger(url)) as ledger:
            recover(ledger, url, price_book, report.missing)
    with suppress(QuotaStoreUnavailable):
        settle_posted(_quota_url(request.data_dir), url, map(tenant_id, report.accounts))


def _remarks(report: AuditReport) -> Iterator[str]:
    if any(accounts.quota is None for accounts in report.accounts.values()):
        yield "the quota store is away: its totals were not compared"
    for number, what in (
        (report.num_waiting, "events wait in the spool"),
        (report.num_unreadable, "lines of the spool are unreadable"),
        (report.num_dead_letters, "dead letters"),
        (report.num_unpriced, "events without a price"),
        (report.num_not_by_gateways, "requests that no gateway sent"),
    ):
        if number:
            yield f"{what}: {number}"


def _accounts_table(accounts: Mapping[str, Accounts]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("tenant", overflow="fold")
    for heading in ("engine", "quota", "ledger", "on the way", "recovered"):
        table.add_column(heading, justify="right")
    for name, of_tenant in accounts.items():
        cells = (of_tenant.engine, of_tenant.quota, of_tenant.ledger)
        more = (of_tenant.waiting, of_tenant.recovered)
        table.add_row(name, *(_cell(account) for account in (*cells, *more)))
    return table


def _cell(account: Account | None) -> str:
    return "-" if account is None else f"{account.num_tokens:,} in {account.num_requests:,}"
