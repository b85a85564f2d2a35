"""An audit whole: read every account, compare, and post what a dead gateway no longer could.

It reads while the fleet runs.  What is on its way between two accounts looks like a difference for
a moment, so whoever asks looks again before believing one.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from sqlalchemy import Connection

from billing.audit import (
    Account,
    Finding,
    Witness,
    Witnesses,
    findings_of_boot,
    findings_of_event,
    findings_of_missing,
    findings_of_quota,
    num_tokens,
    without_event,
)
from billing.audit_facts import (
    Waiting,
    boots,
    latest_tiers,
    ledger_accounts,
    num_dead_letters,
    num_unpriced,
    posted_events,
    read_waiting,
)
from billing.bulk_insert import known_keys
from billing.ledger import Ledger, PostResult
from billing.ledger_database import LedgerRef, reading
from billing.posting import rate_batch
from billing.pricing import PriceBook
from billing.recorded_prices import check_recorded
from billing.records import Batch, EventKey, Record
from contracts.replica_usage import ReplicaUsage
from contracts.usage import Outcome, UsageEvent, UsageSource, encode_usage_event

_UNKNOWN: Final = "unknown"  # what only the gateway knew
_ATTEMPT: Final = re.compile(r"-[0-9]+$")  # a gateway's suffix to its request id


@dataclass(frozen=True, slots=True)
class Accounts:
    """Of one tenant.  None: that account was not there to be read."""

    engine: Account | None
    quota: Account | None
    ledger: Account
    waiting: Account
    recovered: Account


@dataclass(frozen=True, slots=True)
class AuditReport:
    accounts: Mapping[str, Accounts]  # by tenant
    findings: Sequence[Finding]
    missing: Mapping[EventKey, Sequence[ReplicaUsage]]  # served, and not billed
    num_waiting: int
    num_unreadable: int  # lines of the spool
    num_dead_letters: int
    num_unpriced: int
    num_not_by_gateways: int  # a replica's records of requests that no gateway sent


@dataclass(frozen=True, slots=True)
class AuditScope:
    spool_dir: Path
    witnesses: Callable[[], Sequence[Witness]]
    quota: Callable[[], Mapping[str, Account] | None]  # by tenant; None: nobody could be asked
    since: datetime | None  # of events that are checked one by one; None: all
    grace: timedelta  # until a replica's record without an event is missing one


def audit(
    ledger: LedgerRef, price_book: PriceBook, scope: AuditScope, *, now: datetime
) -> AuditReport:
    """Raises LedgerMissing, LedgerUnavailable, OSError; PriceBookInvalid for another ledger's.

    Others go on meanwhile, so what is to know of all that is billed is read after the ledger's
    snapshot, and the quota before and after: what is billed must lie between.
    """
    quota_before = scope.quota()
    with reading(ledger) as connection:
        check_recorded(connection, price_book)
        journals = scope.witnesses()
        waiting = read_waiting(connection, scope.spool_dir)
        quota = scope.quota()
        witnesses = Witnesses.of(journals)
        known = known_keys(connection, witnesses.by_event) | waiting.keys
        missing = without_event(witnesses, known, now=now, grace=scope.grace)
        accounts = _accounts(connection, journals, quota, waiting)
        findings = [
            *(f for boot in boots(connection, waiting) for f in findings_of_boot(boot)),
            *_event_findings(connection, price_book, scope.since, witnesses),
            *findings_of_missing(missing),
            *_quota_findings(accounts, quota_before),
        ]
        return AuditReport(
            accounts=accounts,
            findings=findings,
            missing=missing,
            num_waiting=len(waiting.keys),
            num_unreadable=waiting.num_unreadable,
            num_dead_letters=num_dead_letters(connection),
            num_unpriced=num_unpriced(connection),
            num_not_by_gateways=witnesses.num_without_event,
        )


def recover(
    ledger: Ledger,
    reader: LedgerRef,
    price_book: PriceBook,
    missing: Mapping[EventKey, Sequence[ReplicaUsage]],
) -> PostResult:
    """Posts each once, marked recovered; what has come meanwhile is a repeat, and stays.

    Raises PriceBookInvalid for another ledger's, having changed nothing.
    """
    with reading(reader) as connection:
        check_recorded(connection, price_book)
        tiers = latest_tiers(connection, [tenant_id for tenant_id, _ in missing])
    events = [recovered_event(records, tiers) for records in missing.values()]
    source_id = "audit"
    start = ledger.next_offset(source_id)
    first = 0 if start is None else start
    batch = Batch(
        source_id,
        start,
        first + len(events),
        [Record(first + n, encode_usage_event(event)) for n, event in enumerate(events)],
    )
    return ledger.post(rate_batch(batch, price_book))


def recovered_event(records: Sequence[ReplicaUsage], tiers: Mapping[str, str]) -> UsageEvent:
    """What the gateway would have said, as far as its replicas know.

    Of several attempts the last counts, and of those it went on from what they had generated.
    """
    chain = _last_chain(records)
    first, last = chain[0], chain[-1]
    tenant_id = last.tenant_id or ""
    is_whole = all(record.is_final for record in chain)
    return UsageEvent(
        event_id=last.event_id or "",
        request_id=_ATTEMPT.sub("", last.request_id),
        tenant_id=tenant_id,
        key_id=_UNKNOWN,
        tier=tiers.get(tenant_id, _UNKNOWN),
        model_requested=last.model,
        model=last.model,
        replica=None,
        endpoint=last.endpoint,
        is_stream=last.is_stream,
        admitted_at=first.arrived_at,
        occurred_at=last.finished_at,
        outcome=Outcome.GATEWAY_LOST,
        usage_source=UsageSource.ENGINE if is_whole else UsageSource.PARTIAL,
        input_uncached_tokens=first.input_uncached_tokens,
        input_cache_read_tokens=first.input_cache_read_tokens,
        output_text_tokens=sum(record.output_text_tokens for record in chain),
        reserved_tokens=0,
        ttft_ms=None,
        gateway_id="auditor",
        gateway_boot_id=last.replica_boot_id,
        gateway_seq=last.replica_seq,
        attempt=len(records),
        is_recovered=True,
    )


def _last_chain(records: Sequence[ReplicaUsage]) -> list[ReplicaUsage]:
    """The last attempt, after those whose tokens it was given to go on from."""
    chain: list[ReplicaUsage] = []
    for record in sorted(records, key=lambda r: r.arrived_at, reverse=True):
        chain.insert(0, record)
        if record.resumed_tokens == 0:
            break
    return chain


def _event_findings(
    connection: Connection, price_book: PriceBook, since: datetime | None, witnesses: Witnesses
) -> Iterator[Finding]:
    for posted in posted_events(connection, price_book, since=since):
        yield from findings_of_event(posted, witnesses)


def _accounts(
    connection: Connection,
    witnesses: Sequence[Witness],
    quota: Mapping[str, Account] | None,
    waiting: Waiting,
) -> Mapping[str, Accounts]:
    by_gateways = ledger_accounts(connection, is_recovered=False)
    recovered = ledger_accounts(connection, is_recovered=True)
    engine = _engine_accounts(witnesses)
    told = {} if quota is None else quota
    tenants = set().union(by_gateways, recovered, engine, told, waiting.accounts)
    return {
        tenant_id: Accounts(
            engine=engine.get(tenant_id, Account()) if witnesses else None,
            quota=told.get(tenant_id, Account()) if quota is not None else None,
            ledger=by_gateways.get(tenant_id, Account()),
            waiting=waiting.accounts.get(tenant_id, Account()),
            recovered=recovered.get(tenant_id, Account()),
        )
        for tenant_id in sorted(tenants)
    }


def _engine_accounts(witnesses: Sequence[Witness]) -> Mapping[str, Account]:
    accounts: dict[str, Account] = {}
    for witness in witnesses:
        for record in witness.records:
            if record.tenant_id is not None:
                account = accounts.get(record.tenant_id, Account())
                accounts[record.tenant_id] = account + Account(1, num_tokens(record))
    return accounts


def _quota_findings(
    accounts: Mapping[str, Accounts], before: Mapping[str, Account] | None
) -> Iterator[Finding]:
    for tenant_id, of_tenant in accounts.items():
        if of_tenant.quota is not None and before is not None:
            yield from findings_of_quota(
                tenant_id,
                before=before.get(tenant_id, Account()),
                quota=of_tenant.quota,
                ledger=of_tenant.ledger + of_tenant.recovered,
                waiting=of_tenant.waiting,
            )
