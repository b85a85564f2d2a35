"""A ledger beside what the spool, a replica and the quota say, for the tests of audits."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path

import msgspec

from billing.audit import Account, Kind, QuotaTotals, Witness
from billing.auditor import AuditReport, AuditScope, audit
from billing.lag import Lag
from billing.ledger import Ledger
from billing.posting import rate_batch
from billing.pricing import PriceBook
from contracts.replica_usage import ReplicaUsage
from contracts.usage import UsageEvent
from tests.billing.usage_events import (
    BOOK,
    NOON,
    batch_of,
    usage,
)

NOW = NOON + timedelta(hours=2)
GRACE = timedelta(hours=1)


def event(number: int, **changes: object) -> UsageEvent:
    return usage(number, gateway_seq=number, output_text_tokens=number, **changes)


def record(event: UsageEvent, **changes: object) -> ReplicaUsage:
    """What the replica says of it, where both agree."""
    seen = ReplicaUsage(
        event_id=event.event_id,
        request_id=f"{event.request_id}-0",
        tenant_id=event.tenant_id,
        model=event.model,
        endpoint=event.endpoint,
        is_stream=event.is_stream,
        finish_reasons=("stop",),
        is_final=True,
        input_uncached_tokens=event.input_uncached_tokens,
        input_cache_read_tokens=event.input_cache_read_tokens,
        output_text_tokens=event.output_text_tokens,
        resumed_tokens=0,
        arrived_at=event.admitted_at,
        finished_at=event.occurred_at,
        replica_boot_id="0b",
        replica_seq=event.gateway_seq,
    )
    return msgspec.structs.replace(seen, **changes)


EVENTS = [event(n) for n in (1, 2, 3)]


class Books:
    """A ledger, a spool, one replica's records, and what the quota was told."""

    def __init__(self, ledger: Ledger, ledger_url: str, folder: Path) -> None:
        self.ledger, self.ledger_url = ledger, ledger_url
        self.spool_dir = folder / "spool"
        self.records = [record(e) for e in EVENTS]
        self.quota: Mapping[str, Account] | None = {
            "acme": Account(3, sum(e.total_tokens for e in EVENTS))
        }
        self.since: dict[str, datetime] = {}  # the quota's store has counted
        self.num_unread: int | None = 0
        self.audited_since: datetime | None = None  # of events that are checked one by one
        self._next: int | None = None

    def post(self, *events: UsageEvent, book: PriceBook = BOOK) -> None:
        batch = batch_of(list(events), first=self._next)
        self.ledger.post(rate_batch(batch, book))
        self._next = batch.next_offset

    def audit(self, book: PriceBook = BOOK) -> AuditReport:
        scope = AuditScope(
            spool_dir=self.spool_dir,
            lag=self._lag,
            witnesses=self.journals,
            quota=self._totals,
            since=self.audited_since,
            is_counted=self.audited_since is None,
            grace=GRACE,
        )
        return audit(self.ledger_url, book, scope, now=NOW)

    def journals(self) -> Sequence[Witness]:
        return [Witness("replica-0", self.records)]

    def ask_quota(self) -> Mapping[str, Account] | None:
        return self.quota

    def _lag(self) -> Lag | None:
        return None if self.num_unread is None else Lag({"0": self.num_unread}, {"0": 0})

    def _totals(self) -> Mapping[str, QuotaTotals] | None:
        told = self.ask_quota()
        if told is None:
            return None
        return {name: QuotaTotals(each, self.since.get(name)) for name, each in told.items()}

    def found(self) -> list[tuple[Kind, str]]:
        return [(finding.kind, finding.subject) for finding in self.audit().findings]
