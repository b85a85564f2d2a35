"""An audit: read every account, compare, say what differs.  Changes nothing.

It reads while the fleet runs.  What is on its way between two accounts looks like a difference for
a moment, so whoever asks looks again before believing one.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path

from sqlalchemy import Connection

from billing.audit import (
    Account,
    Finding,
    QuotaLoss,
    QuotaTotals,
    Witness,
    Witnesses,
    finding_of_loss,
    findings_of_boot,
    findings_of_event,
    findings_of_missing,
    findings_of_quota,
    num_tokens,
    quota_loss,
    without_event,
)
from billing.audit_facts import (
    Acknowledged,
    Waiting,
    acknowledged,
    first_event_at,
    num_dead_letters,
    num_unpriced,
    posted_events,
    read_waiting,
)
from billing.audit_money import findings_of_money
from billing.audit_sums import (
    billed_accounts,
    boots,
    counted_accounts,
    findings_of_numbers,
    findings_of_sums,
    num_by_gateways,
    recovered_accounts,
)
from billing.bulk_insert import known_keys
from billing.lag import Lag
from billing.ledger_database import LedgerRef, reading
from billing.pricing import PriceBook
from billing.recorded_prices import check_recorded
from billing.records import EventKey
from contracts.replica_usage import ReplicaUsage

_NOTHING = QuotaTotals(Account(), None)


@dataclass(frozen=True, slots=True)
class Accounts:
    """Of one tenant.  None: that account was not there to be read."""

    engine: Account | None
    quota: Account | None
    ledger: Account
    waiting: Account
    recovered: Account
    acknowledged: Account  # of what is billed: the quota is known to have lost it

    @property
    def told_to_quota(self) -> Account:
        """What it should have been told, and have kept."""
        return self.ledger + self.recovered + self.waiting - self.acknowledged


class Part(StrEnum):
    """Without which a comparison is no proof that the accounts agree."""

    SEGMENTS = "the spool's segments"
    BROKERS = "the brokers"
    QUOTA = "the quota's store"


@dataclass(frozen=True, slots=True)
class AuditReport:
    accounts: Mapping[str, Accounts]  # by tenant
    findings: Sequence[Finding]
    missing: Mapping[EventKey, Sequence[ReplicaUsage]]  # served, and not billed
    unsure: frozenset[EventKey]  # of these: they may still come.  One look is sure of none
    lost: Mapping[str, QuotaLoss]  # by tenant, of quotas that stood still meanwhile
    num_waiting: int
    lag: Lag | None  # behind the brokers; None: who knows
    num_unreadable: int  # lines of the spool
    unreadable_segments: Sequence[str]  # of the spool: what is in them is not compared
    num_dead_letters: int
    num_unpriced: int
    num_not_by_gateways: int  # a replica's records of requests that no gateway sent
    knows_quota: bool = True  # its store could be asked
    num_young: int = 0  # served, without an event, and for less than the grace

    @property
    def num_unread(self) -> int | None:
        """Events that brokers have and the ledger has not."""
        return None if self.lag is None else self.lag.num_unread

    def not_compared(self, *, has_quota_store: bool) -> list[Part]:
        """What could not be read or asked, though it should have been."""
        is_unknown = {
            Part.SEGMENTS: bool(self.unreadable_segments),
            Part.BROKERS: self.lag is None,
            Part.QUOTA: has_quota_store and not self.knows_quota,
        }
        return [part for part in Part if is_unknown[part]]


@dataclass(frozen=True, slots=True)
class AuditScope:
    spool_dir: Path | None  # None: it is not to be seen from here
    lag: Callable[[], Lag | None]
    witnesses: Callable[[], Sequence[Witness]]
    quota: Callable[[], Mapping[str, QuotaTotals] | None]  # by tenant; None: it cannot be asked
    since: datetime | None  # of events that are checked one by one; None: all
    is_counted: bool  # all events and entries are, and nothing is taken from sums
    grace: timedelta  # until a replica's record without an event is missing one


def audit(
    ledger: LedgerRef, price_book: PriceBook, scope: AuditScope, *, now: datetime
) -> AuditReport:
    """Raises LedgerMissing, LedgerUnavailable, OSError; PriceBookInvalid for another ledger's.

    Others go on meanwhile, so what is to know of all that is billed is read after the ledger's
    snapshot, and the quota before and after: what is billed must lie between.
    """
    quota_before = scope.quota()
    lag = scope.lag()
    with reading(ledger, takes_long=scope.is_counted) as connection:
        check_recorded(connection, price_book)
        journals = scope.witnesses()
        waiting = read_waiting(connection, scope.spool_dir)
        quota = None if quota_before is None else scope.quota()  # one look compares nothing
        witnesses = Witnesses.of(journals)
        known = known_keys(connection, witnesses.by_event) | waiting.keys
        missing = without_event(witnesses, known, now=now, grace=scope.grace)
        unbilled = without_event(witnesses, known, now=now, grace=timedelta())
        lost = acknowledged(connection)
        kept, recovered = billed_accounts(connection), recovered_accounts(connection)
        billed = counted_accounts(connection) if scope.is_counted else kept
        accounts = _accounts(billed, recovered, journals, quota, waiting, lost)
        comparison = _QuotaComparison(
            accounts, quota_before, quota, lost, None if lag is None else lag.num_unread
        )
        losses = comparison.losses(connection)
        return AuditReport(
            accounts=accounts,
            findings=[
                *_boot_findings(connection, scope, waiting, billed, recovered),
                *findings_of_sums(kept, billed),
                *(_sum_findings(connection) if scope.is_counted else ()),
                *_event_findings(connection, price_book, scope.since, witnesses),
                *findings_of_missing(missing),
                *comparison.findings(losses),
            ],
            missing=missing,
            unsure=frozenset(missing),
            lost={t: loss for t, loss in losses.items() if comparison.stood_still(t)},
            num_waiting=len(waiting.keys),
            lag=lag,
            num_unreadable=waiting.num_unreadable,
            unreadable_segments=waiting.unreadable_segments,
            num_dead_letters=num_dead_letters(connection),
            num_unpriced=num_unpriced(connection),
            num_not_by_gateways=witnesses.num_without_event,
            knows_quota=quota is not None,
            num_young=len(unbilled) - len(missing),
        )


def _boot_findings(
    connection: Connection,
    scope: AuditScope,
    waiting: Waiting,
    billed: Mapping[str, Account],
    recovered: Mapping[str, Account],
) -> Iterator[Finding]:
    for boot in boots(
        connection,
        waiting.numbers,
        is_counted=scope.is_counted,
        num_written=num_by_gateways(billed, recovered),
    ):
        yield from findings_of_boot(boot)


def _sum_findings(connection: Connection) -> Iterator[Finding]:
    yield from findings_of_numbers(connection)
    yield from findings_of_money(connection)


def _event_findings(
    connection: Connection, price_book: PriceBook, since: datetime | None, witnesses: Witnesses
) -> Iterator[Finding]:
    for posted in posted_events(connection, price_book, since=since):
        yield from findings_of_event(posted, witnesses)


def _accounts(
    billed: Mapping[str, Account],
    recovered: Mapping[str, Account],
    witnesses: Sequence[Witness],
    quota: Mapping[str, QuotaTotals] | None,
    waiting: Waiting,
    lost: Mapping[str, Acknowledged],
) -> Mapping[str, Accounts]:
    engine = _engine_accounts(witnesses)
    told = {} if quota is None else quota
    tenants = set().union(billed, engine, told, waiting.accounts)
    return {
        tenant_id: Accounts(
            engine=engine.get(tenant_id, Account()) if witnesses else None,
            quota=told.get(tenant_id, _NOTHING).account if quota is not None else None,
            ledger=billed.get(tenant_id, Account()) - recovered.get(tenant_id, Account()),
            waiting=waiting.accounts.get(tenant_id, Account()),
            recovered=recovered.get(tenant_id, Account()),
            acknowledged=lost[tenant_id].account if tenant_id in lost else Account(),
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


class _QuotaComparison:
    """The quota's totals from before and after the ledger's snapshot beside what is billed."""

    def __init__(
        self,
        accounts: Mapping[str, Accounts],
        before: Mapping[str, QuotaTotals] | None,
        after: Mapping[str, QuotaTotals] | None,
        acknowledged: Mapping[str, Acknowledged],
        num_unread: int | None,
    ) -> None:
        self._acknowledged = acknowledged
        self._num_unread = num_unread
        self._before = {} if before is None else before
        self._after = {} if after is None else after
        self._billed = {
            tenant_id: of_tenant.told_to_quota
            for tenant_id, of_tenant in accounts.items()
            if before is not None and after is not None
        }

    def stood_still(self, tenant_id: str) -> bool:
        return self._told_before(tenant_id) == self._told_after(tenant_id)

    def losses(self, connection: Connection) -> Mapping[str, QuotaLoss]:
        """By tenant.  Only where there is a difference is it looked for what explains it."""
        differing = [tenant_id for tenant_id in self._billed if list(self._differences(tenant_id))]
        found: dict[str, QuotaLoss] = {}
        for tenant_id in differing:
            self._add_loss(connection, found, tenant_id, self._told_after(tenant_id).since)
        # A tenant who has used nothing since has no totals at all: the others tell when it was.
        latest = max((loss.since for loss in found.values()), default=None)
        for tenant_id in differing:
            if self._told_after(tenant_id) == _NOTHING:
                self._add_loss(connection, found, tenant_id, latest)
        return found

    def findings(self, losses: Mapping[str, QuotaLoss]) -> Iterator[Finding]:
        for tenant_id in self._billed:
            if tenant_id in losses:
                yield finding_of_loss(tenant_id, losses[tenant_id])
            else:
                yield from self._differences(tenant_id)

    def _add_loss(
        self,
        connection: Connection,
        found: dict[str, QuotaLoss],
        tenant_id: str,
        since: datetime | None,
    ) -> None:
        known = self._acknowledged.get(tenant_id)
        if known is not None and since is not None and since <= known.lost_before:
            return
        loss = quota_loss(
            first_event_at=first_event_at(connection, tenant_id),
            since=since,
            quota=self._told_after(tenant_id).account,
            billed=self._billed[tenant_id],
        )
        if loss is not None:
            found[tenant_id] = loss

    def _differences(self, tenant_id: str) -> Iterator[Finding]:
        return findings_of_quota(
            tenant_id,
            before=self._told_before(tenant_id).account,
            quota=self._told_after(tenant_id).account,
            billed=self._billed[tenant_id],
            num_unread=self._num_unread,
        )

    def _told_before(self, tenant_id: str) -> QuotaTotals:
        return self._before.get(tenant_id, _NOTHING)

    def _told_after(self, tenant_id: str) -> QuotaTotals:
        return self._after.get(tenant_id, _NOTHING)
