"""Whether engine, quota, events and ledger tell the same story.  Pure: facts in, findings out.

Each check looks at another pair of accounts, so that one mistake is seen from two sides: an event
that was dropped leaves a gap in its gateway's numbers and a replica's record without a bill; one
that was doubled, an event no replica knows of; one that was mispriced, entries that its tokens and
the price book do not make.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from billing.rating import charged_tokens
from billing.records import EventKey
from contracts.replica_usage import ReplicaUsage
from contracts.usage import Outcome, UsageEvent, UsageSource

_CLOCKS_DIFFER = timedelta(minutes=1)  # between a gateway and the store, at most


class Kind(StrEnum):
    SEQUENCE_GAP = "sequence gap"  # a gateway's event that never came
    NUMBERED_TWICE = "number used twice"  # two events under one number of a gateway
    NO_EVENT = "served, not billed"  # a replica's record without an event
    NO_WITNESS = "billed, not served"  # an event that its replica has no record of
    COUNTS_DIFFER = "counts differ"  # event and replica
    MISPRICED = "mispriced"  # the entries are not what tokens and price book make
    QUOTA_DIFFERS = "quota differs"  # what the quota was told, and what is billed
    SUMS_DIFFER = "sums differ"  # what is kept of days and numbers, entries, and their events
    QUOTA_LOST = "quota lost"  # its store has: what it was told is less than what is billed


SEEN_BY_COUNTING: Final = frozenset({Kind.NUMBERED_TWICE, Kind.SUMS_DIFFER})  # and not by sums


@dataclass(frozen=True, slots=True)
class Finding:
    kind: Kind
    tenant_id: str | None  # None: of no single tenant
    subject: str  # an event, a gateway's boot, an account
    detail: str


@dataclass(frozen=True, slots=True)
class Account:
    num_requests: int = 0
    num_tokens: int = 0

    def __add__(self, other: "Account") -> "Account":
        return Account(self.num_requests + other.num_requests, self.num_tokens + other.num_tokens)

    def __sub__(self, other: "Account") -> "Account":
        return Account(self.num_requests - other.num_requests, self.num_tokens - other.num_tokens)

    def __str__(self) -> str:
        return f"{self.num_requests} requests, {self.num_tokens} tokens"


@dataclass(frozen=True, slots=True)
class QuotaTotals:
    """What the quota has been told of a tenant, since its store began to count."""

    account: Account
    since: datetime | None  # None: nothing was told, or by an earlier version


@dataclass(frozen=True, slots=True)
class QuotaLoss:
    """What is billed and the quota was told before its store lost it."""

    since: datetime  # the store has counted anew
    missing: Account


Entries = Mapping[str, tuple[int, int, str]]  # (tokens, pico-dollars, price id), by token class


@dataclass(frozen=True, slots=True)
class Posted:
    """An event in the ledger, and what it was charged."""

    event: UsageEvent
    entries: Entries
    expected: Entries | None  # None: no price is known, it waits


@dataclass(frozen=True, slots=True)
class Witness:
    """What one replica has kept of its own counts."""

    replica: str
    records: Sequence[ReplicaUsage]

    @property
    def since(self) -> datetime | None:
        """It has kept all that ended from then on, but for what it lost; None: nothing."""
        return min((record.finished_at for record in self.records), default=None)


@dataclass(frozen=True, slots=True)
class Boot:
    """The numbers of one life of a gateway process, in the ledger and on the way there."""

    boot_id: str
    numbers: Sequence[int]

    def gaps(self) -> list[tuple[int, int]]:
        """[first, last] of each.  What a boot wrote after the last number seen leaves none."""
        gaps: list[tuple[int, int]] = []
        previous = 0
        for number in sorted(set(self.numbers)):
            if number > previous + 1:
                gaps.append((previous + 1, number - 1))
            previous = number
        return gaps


@dataclass(slots=True)
class Witnesses:
    """All replicas' records, by the event they are of."""

    by_event: dict[EventKey, list[ReplicaUsage]] = field(default_factory=dict)
    since: dict[str, datetime] = field(default_factory=dict)  # by replica
    num_without_event: int = 0  # asked by no gateway

    @classmethod
    def of(cls, witnesses: Sequence[Witness]) -> "Witnesses":
        found = cls()
        for witness in witnesses:
            if witness.since is not None:
                found.since[witness.replica] = witness.since
            for record in witness.records:
                if record.event_id is None or record.tenant_id is None:
                    found.num_without_event += 1
                else:
                    key = (record.tenant_id, record.event_id)
                    found.by_event.setdefault(key, []).append(record)
        return found


def findings_of_boot(boot: Boot) -> Iterator[Finding]:
    for first, last in boot.gaps():
        detail = f"{last - first + 1} missing: {first} to {last}"
        yield Finding(Kind.SEQUENCE_GAP, None, boot.boot_id, detail)
    num_twice = len(boot.numbers) - len(set(boot.numbers))
    if num_twice:
        detail = f"{num_twice} events bear a number of another"
        yield Finding(Kind.NUMBERED_TWICE, None, boot.boot_id, detail)


def findings_of_event(posted: Posted, witnesses: Witnesses) -> Iterator[Finding]:
    event = posted.event
    expected = {} if posted.expected is None else posted.expected
    if posted.entries != expected:
        detail = f"expected {_money(expected)}, charged {_money(posted.entries)}"
        yield Finding(Kind.MISPRICED, event.tenant_id, event.event_id, detail)
    records = witnesses.by_event.get((event.tenant_id, event.event_id), [])
    fault = _unwitnessed(event, witnesses) if not records else _differs(event, records)
    if fault is not None:
        kind = Kind.COUNTS_DIFFER if records else Kind.NO_WITNESS
        yield Finding(kind, event.tenant_id, event.event_id, fault)


def findings_of_quota(
    tenant_id: str, *, before: Account, quota: Account, billed: Account, num_unread: int | None
) -> Iterator[Finding]:
    """``before``: what the quota had been told when the other accounts began to be read.

    What an auditor has posted is among what is billed: the quota was told of it then.
    ``num_unread``: events, of any tenant, that the brokers have and the ledger has not; None: who
    knows.  So many that the quota was told of may be among them.
    """
    lacking, too_many = before - billed, billed - quota
    is_on_its_way = num_unread is None or 0 < lacking.num_requests <= num_unread
    if _has_any(too_many) or (_has_any(lacking) and not is_on_its_way):
        detail = f"quota was told {quota}; billed are {billed}"
        yield Finding(Kind.QUOTA_DIFFERS, tenant_id, "quota", detail)


def _has_any(account: Account) -> bool:
    return account.num_requests > 0 or account.num_tokens > 0


def finding_of_loss(tenant_id: str, loss: QuotaLoss) -> Finding:
    detail = f"since {loss.since:%Y-%m-%d %H:%M:%S} UTC it lacks {loss.missing}"
    return Finding(Kind.QUOTA_LOST, tenant_id, "quota", detail)


def finding_of_sums(tenant_id: str, of_days: Account, of_events: Account) -> Finding:
    detail = f"the days add up to {of_days}; the events to {of_events}"
    return Finding(Kind.SUMS_DIFFER, tenant_id, "daily usage", detail)


def finding_of_numbers(boot_id: str, num_kept: int, num_events: int) -> Finding:
    detail = f"the kept sums are of {num_kept} numbers, and not those of its {num_events} events"
    return Finding(Kind.SUMS_DIFFER, None, boot_id, detail)


def finding_of_entries(tenant_id: str, num_more: int, pico_usd: int) -> Finding:
    detail = f"{num_more} more than its events reach, of {pico_usd} pico-USD"
    return Finding(Kind.SUMS_DIFFER, tenant_id, "ledger entries", detail)


def finding_of_money(tenant_id: str, of_days: int, charged: int) -> Finding:
    detail = f"the days add up to {of_days} pico-USD; entries and late reports to {charged}"
    return Finding(Kind.SUMS_DIFFER, tenant_id, "money by day", detail)


def quota_loss(
    *, first_event_at: datetime | None, since: datetime | None, quota: Account, billed: Account
) -> QuotaLoss | None:
    """What the store has lost: it began to count long after what is billed began to be served."""
    missing = billed - quota
    is_less = missing.num_requests >= 0 and missing.num_tokens >= 0
    if since is None or first_event_at is None or not is_less:
        return None
    return QuotaLoss(since, missing) if first_event_at + _CLOCKS_DIFFER < since else None


def without_event(
    witnesses: Witnesses, known: set[EventKey], *, now: datetime, grace: timedelta
) -> dict[EventKey, list[ReplicaUsage]]:
    """Records that are older than ``grace``, of no event in ``known``, and of tokens."""
    return {
        key: records
        for key, records in witnesses.by_event.items()
        if key not in known
        and max(record.finished_at for record in records) + grace <= now
        and sum(map(num_tokens, records)) > 0
    }


def num_tokens(record: ReplicaUsage) -> int:
    return record.input_uncached_tokens + record.input_cache_read_tokens + record.output_text_tokens


def findings_of_missing(missing: Mapping[EventKey, Sequence[ReplicaUsage]]) -> Iterator[Finding]:
    for (tenant_id, event_id), records in missing.items():
        total = sum(map(num_tokens, records))
        detail = f"{total} tokens in {len(records)} attempts"
        yield Finding(Kind.NO_EVENT, tenant_id, event_id, detail)


def _unwitnessed(event: UsageEvent, witnesses: Witnesses) -> str | None:
    """None where there is nobody who would have to know of it."""
    if event.usage_source is not UsageSource.ENGINE or event.total_tokens == 0:
        return None
    since = None if event.replica is None else witnesses.since.get(event.replica)
    if since is None or event.admitted_at < since:
        return None
    return f"{event.total_tokens} tokens that {event.replica} has no record of"


def _differs(event: UsageEvent, records: Sequence[ReplicaUsage]) -> str | None:
    """An answer that took several attempts cost the replicas more than it is billed for."""
    if event.total_tokens == 0 and event.outcome is not Outcome.COMPLETED:
        return None  # an answer that failed is not billed, whatever it took
    if event.usage_source is not UsageSource.ENGINE:
        return _exceeds(event, records)
    last = max(records, key=lambda record: record.arrived_at)
    whole = len(records) == 1 and last.resumed_tokens == 0 and last.is_final
    if whole and _classes_of_event(event) != _classes_of_record(last):
        billed, served = _in_words(_classes_of_event(event)), _in_words(_classes_of_record(last))
        return f"event {billed}, 1 record of {served}"
    served_tokens = sum(map(num_tokens, records))
    if event.total_tokens > served_tokens:
        return f"event {event.total_tokens} tokens, {len(records)} records of {served_tokens}"
    return None


def _exceeds(event: UsageEvent, records: Sequence[ReplicaUsage]) -> str | None:
    """What was not counted to its end, or by the gateway, bills no more output than there was."""
    if not all(record.is_final for record in records):
        return None
    generated = sum(record.output_text_tokens for record in records)
    if event.output_tokens <= generated:
        return None
    return f"event {event.output_tokens} tokens of output, {len(records)} records of {generated}"


_Classes = tuple[int, int, int]  # input that was computed and that was cached, output


def _classes_of_event(event: UsageEvent) -> _Classes:
    """As far as a replica's record tells them apart."""
    computed = event.input_uncached_tokens + event.input_cache_write_tokens
    return computed, event.input_cache_read_tokens, event.output_tokens


def _classes_of_record(record: ReplicaUsage) -> _Classes:
    return record.input_uncached_tokens, record.input_cache_read_tokens, record.output_text_tokens


def _in_words(classes: _Classes) -> str:
    return "{} uncached, {} cached, {} output tokens".format(*classes)


def _money(entries: Entries) -> str:
    return (
        ", ".join(
            f"{token_class}: {tokens} tokens, {pico_usd} pico-USD by {price_id}"
            for token_class, (tokens, pico_usd, price_id) in sorted(entries.items())
        )
        or "nothing"
    )


def expected_entries(event: UsageEvent, rates: Mapping[str, int], price_id: str) -> Entries:
    """``rates``: pico-dollars per token by class."""
    return {
        token_class.value: (tokens, tokens * rates[token_class.value], price_id)
        for token_class, tokens in charged_tokens(event).items()
        if tokens > 0
    }
