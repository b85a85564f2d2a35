"""``pandal audit``: whether engine, quota, events and ledger of a fleet agree, to the token."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from billing.audit import Account
from billing.auditor import Accounts, AuditReport, Part
from billing.errors import SourceUnavailable
from billing.kafka_source import lag_behind
from billing.kafka_wiring import client_arguments
from billing.lag import NO_LAG, Lag
from billing.lookup import next_offset, reads_kafka
from billing.quota_store import with_tls
from billing.reconciliation import AuditRules, Sources, policy_tenants, reconcile
from contracts.names import USAGE_TOPIC
from pandal.errors import BadOption, NotAudited, PandalError
from pandal.fleet_books import FleetBooks, translated
from pandal.screen import as_written
from pandal.settings import KAFKA_BOOTSTRAP, QUOTA_URL, CommandSettings


def run_audit(books: FleetBooks, sources: Sources, rules: AuditRules) -> AuditReport:
    """Raises BadOption; NotAudited where a part of the books cannot be read at all."""
    try:
        with translated(books):
            return reconcile(sources, rules)
    except BadOption:
        raise
    except PandalError as exc:
        raise NotAudited(str(exc)) from exc
    except OSError as exc:
        raise NotAudited(f"cannot be read: {exc}") from exc


def sources_of(books: FleetBooks, price_book: Path | None, settings: CommandSettings) -> Sources:
    """Those of the local fleet, but for what is named: of another ledger only what is named."""
    quota_url = None
    if settings.quota_url is not None:
        quota_url = with_tls(settings.quota_url.get_secret_value(), settings)
    data_dir = books.data_dir
    is_local = books.other_ledger_url is None
    if quota_url is None and is_local:
        quota_url = f"unix://{data_dir.sockets / 'quota.sock'}"
    return Sources(
        ledger_url=books.ledger_url,
        price_book=price_book,
        spool_dir=data_dir.spool if is_local else None,
        journals_dir=data_dir.usage_journals if is_local else None,
        quota_url=quota_url,
        policy_tenants=lambda: policy_tenants(data_dir.policies if is_local else None),
        lag=lambda: _lag(books.ledger_url, settings),
    )


def _lag(ledger_url: str, settings: CommandSettings) -> Lag:
    """Raises SourceUnavailable."""
    bootstrap = settings.kafka_bootstrap
    if bootstrap is not None:
        brokers = {"bootstrap_servers": bootstrap, **client_arguments(settings)}
        return lag_behind(brokers, USAGE_TOPIC, partial(next_offset, ledger_url))
    if reads_kafka(ledger_url):
        raise SourceUnavailable(f"events come from Kafka, and {KAFKA_BOOTSTRAP} names no broker")
    return NO_LAG


def status_of(report: AuditReport, not_compared: Sequence[Part]) -> int:
    """The command's.  What is in a segment may be all that seems to be missing."""
    if Part.SEGMENTS in not_compared:
        return NotAudited.exit_code
    if report.findings:
        return 1
    return NotAudited.exit_code if not_compared else 0


def show_report(console: Console, report: AuditReport, not_compared: Sequence[Part]) -> None:
    console.print(_accounts_table(report.accounts))
    for line in _remarks(report, not_compared):
        console.print(as_written(line))
    if not report.findings:
        if not_compared:
            console.print(Text("no difference in what could be read", "bold yellow"))
        else:
            console.print(Text("no difference", "bold green"))
        return
    num_found = len(report.findings)
    console.print(Text(f"{num_found} difference{'s' * (num_found != 1)}", "bold red"))
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("difference", "tenant", "of", "what was found"):
        table.add_column(heading, overflow="fold")
    for finding in report.findings:
        tenant = "-" if finding.tenant_id is None else finding.tenant_id
        about = map(as_written, (tenant, finding.subject, finding.detail))
        table.add_row(finding.kind.value, *about)
    console.print(table)


def report_json(report: AuditReport, not_compared: Sequence[Part]) -> bytes:
    document = {
        "agrees": not report.findings and not not_compared,
        "not_compared": not_compared,
        "accounts": report.accounts,
        "findings": report.findings,
        "num_waiting": report.num_waiting,
        "num_unsure": len(report.unsure),
        "num_unread": report.num_unread,
        "num_unreadable": report.num_unreadable,
        "unreadable_segments": report.unreadable_segments,
        "num_dead_letters": report.num_dead_letters,
        "num_unpriced": report.num_unpriced,
        "num_not_by_gateways": report.num_not_by_gateways,
        "num_young": report.num_young,
    }
    return msgspec.json.encode(document)


def _remarks(report: AuditReport, not_compared: Sequence[Part]) -> Iterator[str]:
    if report.unsure:
        yield f"served, not billed yet, and may still come: {len(report.unsure)}"
    if Part.QUOTA in not_compared:
        yield "the quota store is away: its totals were not compared"
    elif not report.knows_quota:
        yield f"{QUOTA_URL} names no quota store: its totals were not compared"
    for name in report.unreadable_segments:
        yield f"the spool's segment {name} cannot be read: what is in it was not compared"
    for number, what in (
        (report.num_waiting, "events wait in the spool"),
        (report.num_unread, "events wait in Kafka"),
        (report.num_unreadable, "lines of the spool are unreadable"),
        (report.num_dead_letters, "dead letters"),
        (report.num_unpriced, "events without a price"),
        (report.num_not_by_gateways, "requests that no gateway sent"),
        (report.num_young, "requests served within --grace-s, that may still be billed"),
    ):
        if number is None:
            yield f"{what}: nobody could be asked how many"
        elif number:
            yield f"{what}: {number}"


def _accounts_table(accounts: Mapping[str, Accounts]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("tenant", overflow="fold")
    for heading in ("engine", "quota", "ledger", "on the way", "recovered", "quota lost"):
        table.add_column(f"{heading}\ntokens in\nrequests", justify="right")
    for name, of_tenant in accounts.items():
        cells = (of_tenant.engine, of_tenant.quota, of_tenant.ledger)
        more = (of_tenant.waiting, of_tenant.recovered, of_tenant.acknowledged)
        table.add_row(as_written(name), *(_cell(account) for account in (*cells, *more)))
    return table


def _cell(account: Account | None) -> str:
    return "-" if account is None else f"{account.num_tokens:,} in {account.num_requests:,}"
