"""All accounts compared until what moves has come to rest, and mended where that is certain.

What a replica served and nobody billed is posted, once all has been read that was written when it
was first missed.  What the quota's store has lost is acknowledged, once two looks agree on how much
after that.  What is posted and still held is told to the gateways, who settle it.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from billing.audit import SEEN_BY_COUNTING, Finding, Kind, QuotaTotals
from billing.auditor import AuditReport, AuditScope, audit
from billing.boot_sums import lacking_sums
from billing.certainty import Sightings
from billing.errors import QuotaStoreUnavailable, SourceUnavailable
from billing.journals import read_journals
from billing.lag import Lag
from billing.ledger import Ledger
from billing.lookup import recovered_untold, tenants, used_by_event
from billing.money import nano_usd_up
from billing.price_book_file import read_price_book
from billing.quota_store import held_reservations, settled_totals, tell_owed
from billing.recovery import recover
from contracts.debts import OwedSettlement
from contracts.names import TenantId, tenant_id
from contracts.policy import decode_policy_document

_LOOK_AGAIN_S: Final = 0.2
_BRIEFLY_S: Final = 1.0  # before it is mended: what is only on its way is not harmed by that


@dataclass(frozen=True, slots=True)
class Sources:
    """Where a fleet's accounts are."""

    ledger_url: str
    price_book: Path | None  # None: the packaged one
    spool_dir: Path | None  # None: not to be seen from here
    journals_dir: Path | None  # of the replicas; None: not to be seen from here
    quota_url: str | None
    policy_tenants: Callable[[], Iterable[TenantId]]
    lag: Callable[[], Lag]  # behind the brokers; raises SourceUnavailable


def policy_tenants(policy_file: Path | None) -> list[TenantId]:
    """Whom a policy names, in a file that need not be there.  Raises ContractError, OSError."""
    if policy_file is None or not policy_file.exists():
        return []
    return [p.tenant_id for p in decode_policy_document(policy_file.read_bytes()).tenants]


@dataclass(frozen=True, slots=True)
class AuditRules:
    grace: timedelta  # until what a replica served must have been billed
    patience_s: float  # for accounts that move while they are read
    span: timedelta | None  # how far back events are checked one by one; None: all
    is_counted: bool  # nothing is taken from sums
    recovers: bool


def reconcile(
    sources: Sources,
    rules: AuditRules,
    is_stopping: Callable[[], bool] = lambda: False,
    sightings: Sightings | None = None,
) -> AuditReport:
    """Blocks.  Looks again while what may move differs, for ``patience_s`` at most.

    ``is_stopping``: whoever asked will not wait any longer.  ``sightings``: of those before.

    Raises LedgerMissing, LedgerUnavailable, PriceBookInvalid, ContractError, OSError.
    """
    seen = Sightings() if sightings is None else sightings
    if rules.is_counted and rules.recovers:
        _complete_sums(sources.ledger_url)
    is_counted = rules.is_counted

    def look() -> AuditReport:
        nonlocal is_counted
        report = _look(sources, replace(rules, is_counted=is_counted))
        # Sums that counting has found right need not be counted again.
        is_counted &= any(finding.kind in SEEN_BY_COUNTING for finding in report.findings)
        return seen.judged(report)

    briefly_s = min(_BRIEFLY_S, rules.patience_s)
    report = _patiently(look, briefly_s if rules.recovers else rules.patience_s, is_stopping)
    if report.unsure and report.lag is not None and not report.unreadable_segments:
        _wait_until_read(sources, report.lag, rules.patience_s, is_stopping)
        report = _patiently(look, briefly_s, is_stopping)
    if not rules.recovers or not report.findings or is_stopping():
        return report
    _mend(sources, rules, report)
    return _patiently(look, rules.patience_s, is_stopping)


def _look(sources: Sources, rules: AuditRules) -> AuditReport:
    now = datetime.now(UTC)
    journals_dir = sources.journals_dir
    scope = AuditScope(
        spool_dir=sources.spool_dir,
        lag=lambda: _lag(sources),
        witnesses=lambda: [] if journals_dir is None else read_journals(journals_dir),
        quota=lambda: _quota(sources),
        since=None if rules.span is None else now - rules.span,
        is_counted=rules.is_counted,
        grace=rules.grace,
    )
    return audit(sources.ledger_url, read_price_book(sources.price_book), scope, now=now)


def _lag(sources: Sources) -> Lag | None:
    try:
        return sources.lag()
    except SourceUnavailable:
        return None


def _quota(sources: Sources) -> Mapping[str, QuotaTotals] | None:
    """Of all tenants that a policy or the ledger names."""
    if sources.quota_url is None:
        return None
    known = {*sources.policy_tenants(), *map(tenant_id, tenants(sources.ledger_url))}
    try:
        return settled_totals(sources.quota_url, known)
    except QuotaStoreUnavailable:
        return None


# Looking again


def _patiently(
    look: Callable[[], AuditReport], patience_s: float, is_stopping: Callable[[], bool]
) -> AuditReport:
    """What moves is no difference: only what every look has found, until patience ends."""
    earlier = look()
    give_up_s = time.monotonic() + patience_s  # from here on: a look of large books takes longer
    report = replace(earlier, lost={})  # one look proves no loss
    while any(finding.kind in _MOVING for finding in report.findings):
        if time.monotonic() >= give_up_s or is_stopping():
            break
        time.sleep(_LOOK_AGAIN_S)  # for other processes to write: they tell nobody when they have
        later = look()
        report = seen_twice(earlier, later)
        earlier = replace(later, findings=report.findings)
    return report


def seen_twice(earlier: AuditReport, later: AuditReport) -> AuditReport:
    """The later report, without what moves and was no difference before."""
    found = {_identity(finding) for finding in earlier.findings}
    return replace(
        later,
        findings=[f for f in later.findings if f.kind not in _MOVING or _identity(f) in found],
        lost={t: loss for t, loss in later.lost.items() if earlier.lost.get(t) == loss},
    )


def _wait_until_read(
    sources: Sources, missed_at: Lag, patience_s: float, is_stopping: Callable[[], bool]
) -> None:
    """What was on its way then.  The brokers alone are asked: it costs less than a look."""
    give_up_s = time.monotonic() + patience_s
    lag: Lag | None = missed_at
    while lag is not None and not lag.has_passed(missed_at.ends):
        if time.monotonic() >= give_up_s or is_stopping():
            return
        time.sleep(_LOOK_AGAIN_S)
        lag = _lag(sources)


def _identity(finding: Finding) -> tuple[Kind, str | None, str]:
    return finding.kind, finding.tenant_id, finding.subject


_MOVING: Final = frozenset(
    {Kind.QUOTA_DIFFERS, Kind.QUOTA_LOST, Kind.SEQUENCE_GAP, Kind.NO_WITNESS}
)


# Mending


def _complete_sums(ledger_url: str) -> None:
    lacking = lacking_sums(ledger_url)
    if lacking:
        with closing(Ledger(ledger_url)) as ledger:
            ledger.keep_sums(lacking)


def _mend(sources: Sources, rules: AuditRules, report: AuditReport) -> None:
    url = sources.ledger_url
    with closing(Ledger(url)) as ledger:
        certain = {key: of for key, of in report.missing.items() if key not in report.unsure}
        if certain:
            recover(ledger, url, read_price_book(sources.price_book), certain)
        for name, loss in report.lost.items():
            # What ran when it was lost ends unsettled: by then it has, and is in the ledger.
            if loss.since + rules.grace <= datetime.now(UTC):
                ledger.acknowledge(name, loss)
    if sources.quota_url is not None:
        with suppress(QuotaStoreUnavailable):
            for name in map(tenant_id, report.accounts):
                _tell_held(sources.quota_url, url, name)


def _tell_held(quota_url: str, ledger_url: str, tenant: TenantId) -> None:
    """What is in the ledger and was never settled, for its gateway died in between.

    A reservation bears its event's id; the store remembers it for a day, and as long what it has
    been told of that it did not decide: an hour before that is over it is told no more.
    """
    held = held_reservations(quota_url, tenant)
    untold = recovered_untold(ledger_url, tenant, since=datetime.now(UTC) - timedelta(hours=23))
    debts = [
        OwedSettlement(
            tenant_id=tenant,
            event_id=event_id,
            tokens=used.num_tokens,
            nano_usd=nano_usd_up(used.pico_usd),
            is_untold=event_id in untold,
        )
        for event_id, used in used_by_event(ledger_url, tenant, [*held, *untold]).items()
    ]
    if debts:
        tell_owed(quota_url, debts)
