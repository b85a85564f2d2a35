"""What is billed by tenant, and gateways' numbers, as an audit asks for them.

By the sums that are kept with each posting, a row a day and key, so that an audit by the hour does
not grow with the events; or counted anew, event by event, which checks those sums as well.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from sqlalchemy import Connection, Select, func, not_, select

from billing.audit import Account, Boot, Finding, finding_of_numbers, finding_of_sums
from billing.bulk_insert import in_parts
from billing.late_reports import late_numbers
from billing.ledger_schema import (
    SUMS_MODULUS,
    TOKEN_COLUMNS,
    US_PER_DAY,
    daily_usage,
    gateway_boots,
    late_reports,
    usage_events,
)
from billing.pricing import TOKEN_CLASSES

_EVENT_TOKENS: Final = sum(
    (func.sum(column) for column in TOKEN_COLUMNS[1:]), func.sum(TOKEN_COLUMNS[0])
)
_DAYS_TOKENS: Final = [daily_usage.c[f"{c.value}_tokens"] for c in TOKEN_CLASSES]
_BY_GATEWAYS: Final = not_(usage_events.c.is_recovered)
_NOTHING: Final = Account()


def billed_accounts(connection: Connection) -> dict[str, Account]:
    """By tenant, all that is in the ledger, as gateways tell it where they told it late."""
    days = daily_usage.c
    tokens = sum((func.sum(column) for column in _DAYS_TOKENS[1:]), func.sum(_DAYS_TOKENS[0]))
    query = select(days.tenant_id, func.sum(days.num_requests), tokens).group_by(days.tenant_id)
    return _accounts(connection, query)


def recovered_accounts(connection: Connection) -> dict[str, Account]:
    """By tenant: what an auditor has posted, as gateways tell it where they told it late."""
    return _with_late(connection, _by_tenant().where(usage_events.c.is_recovered))


def num_by_gateways(billed: Mapping[str, Account], recovered: Mapping[str, Account]) -> int:
    """How many of the billed events a gateway wrote."""
    num_billed, num_recovered = (
        sum(account.num_requests for account in accounts.values())
        for accounts in (billed, recovered)
    )
    return num_billed - num_recovered


def counted_accounts(connection: Connection) -> dict[str, Account]:
    """As ``billed_accounts``, out of every event."""
    return _with_late(connection, _by_tenant())


def findings_of_sums(
    kept: Mapping[str, Account], counted: Mapping[str, Account]
) -> Iterator[Finding]:
    for tenant_id in sorted({*kept, *counted}):
        of_days, of_events = kept.get(tenant_id, _NOTHING), counted.get(tenant_id, _NOTHING)
        if of_days != of_events:
            yield finding_of_sums(tenant_id, of_days, of_events)


def _by_tenant() -> Select[Any]:  # Any: names and numbers
    tenant_id = usage_events.c.tenant_id
    return select(tenant_id, func.count(), _EVENT_TOKENS).group_by(tenant_id)


def _with_late(connection: Connection, query: Select[Any]) -> dict[str, Account]:
    """With the tokens that gateways knew of and the replicas' records did not."""
    accounts = _accounts(connection, query)
    of_tenant = late_reports.c.tenant_id
    more = select(of_tenant, func.sum(late_reports.c.more_tokens)).group_by(of_tenant)
    for tenant_id, num_tokens in connection.execute(more):
        accounts[tenant_id] += Account(0, int(num_tokens))
    return accounts


def _accounts(connection: Connection, query: Select[Any]) -> dict[str, Account]:
    return {
        tenant_id: Account(int(num_requests), int(num_tokens))
        for tenant_id, num_requests, num_tokens in connection.execute(query)
    }


# Gateways' numbers


@dataclass(frozen=True, slots=True)
class BootSums:
    """Of the numbers of one boot's events."""

    boot_id: str
    num_events: int
    last: int
    numbers: int  # of remainders, as the squares
    squares: int
    first_posted_at_us: int
    last_posted_at_us: int

    def without(self, other: "BootSums | None") -> "BootSums":
        """Those of the events that ``other``, of the same boot, is not of."""
        if other is None:
            return self
        return replace(
            self,
            num_events=self.num_events - other.num_events,
            numbers=self.numbers - other.numbers,
            squares=self.squares - other.squares,
        )

    def is_whole_with(self, coming: Sequence[int]) -> bool:
        """Whether they are 1 to the last, each once.

        Whatever is amiss with one or two of them is seen for certain; of three that are lost and
        three that are there twice both sums must agree, by the modulus.
        """
        last = max(self.last, *coming, 0)
        numbers = self.numbers + sum(coming)
        squares = self.squares + sum(number * number for number in coming)
        return (
            self.num_events + len(coming) == last
            and (numbers - last * (last + 1) // 2) % SUMS_MODULUS == 0
            and (squares - last * (last + 1) * (2 * last + 1) // 6) % SUMS_MODULUS == 0
        )


def boots(
    connection: Connection,
    waiting: Mapping[str, Sequence[int]],
    *,
    is_counted: bool,
    num_written: int,
) -> Iterator[Boot]:
    """Those whose numbers cannot all be there once; no others, a boot may have written millions.

    ``waiting``: numbers on their way here, by boot.  Events that an auditor has posted bear no
    gateway's number, but for what it told late of them.  ``num_written``: the others, as days have
    it (``num_by_gateways``).
    """
    coming = {boot_id: list(numbers) for boot_id, numbers in waiting.items()}
    for boot_id, late in late_numbers(connection):
        coming.setdefault(boot_id, []).append(late)
    doubled = _doubled(connection) if is_counted else frozenset()
    all_sums = counted_sums(connection) if is_counted else kept_sums(connection)
    found: list[Boot] = []
    for sums in all_sums:
        on_the_way = coming.pop(sums.boot_id, [])
        if sums.boot_id in doubled or not sums.is_whole_with(on_the_way):
            found.append(Boot(sums.boot_id, [*_numbers(connection, sums), *on_the_way]))
    found.extend(Boot(boot_id, numbers) for boot_id, numbers in coming.items())
    knows_all = sum(sums.num_events for sums in all_sums) == num_written
    yield from found if knows_all else _with_all_numbers(connection, found)


def kept_sums(connection: Connection, *, but_of: str | None = None) -> list[BootSums]:
    """``but_of``: a source whose are left out."""
    kept = gateway_boots.c
    query = select(
        kept.gateway_boot_id,
        func.sum(kept.num_events),
        func.max(kept.last_number),
        func.sum(kept.sum_numbers),
        func.sum(kept.sum_squares),
        func.min(kept.first_posted_at_us),
        func.max(kept.last_posted_at_us),
    )
    return _by_boot(connection, query if but_of is None else query.where(kept.source_id != but_of))


def counted_sums(connection: Connection) -> list[BootSums]:
    events = usage_events.c
    rest = events.gateway_seq % SUMS_MODULUS
    query = select(
        events.gateway_boot_id,
        func.count(),
        func.max(events.gateway_seq),
        func.sum(rest),
        func.sum(rest * rest % SUMS_MODULUS),
        func.min(events.posted_at_us),
        func.max(events.posted_at_us),
    )
    return _by_boot(connection, query.where(_BY_GATEWAYS))


def _by_boot(connection: Connection, query: Select[Any]) -> list[BootSums]:  # Any: a name, numbers
    boot_id = query.selected_columns[0]
    rows = connection.execute(query.group_by(boot_id).order_by(boot_id))
    return [BootSums(row[0], *map(int, row[1:])) for row in rows]


def findings_of_numbers(connection: Connection) -> Iterator[Finding]:
    """Sums that are not their events'.  Those of fewer say nothing that is not so.

    Billing of a version before ``gateway_boots`` goes on posting beside it for as long as it is
    replaced, and adds nothing there.
    """
    counted = {sums.boot_id: sums for sums in counted_sums(connection)}
    for kept in kept_sums(connection):
        events = counted.get(kept.boot_id)
        num_events = 0 if events is None else events.num_events
        if kept.num_events > num_events or (
            events is not None
            and kept.num_events == num_events
            and (kept.last, kept.numbers, kept.squares)
            != (events.last, events.numbers, events.squares)
        ):
            yield finding_of_numbers(kept.boot_id, kept.num_events, num_events)


def _doubled(connection: Connection) -> frozenset[str]:
    """Boots that gave a number twice, whatever the sums say."""
    events = usage_events.c
    query = select(events.gateway_boot_id).where(_BY_GATEWAYS).group_by(events.gateway_boot_id)
    query = query.having(func.count() != func.count(events.gateway_seq.distinct()))
    return frozenset(connection.scalars(query))


def _numbers(connection: Connection, sums: BootSums) -> Sequence[int]:
    """Found by when they were posted: there is no index by boot, which each event would pay for.

    A day more at both ends: of what billing of an earlier version has posted, ``sums`` know not.
    """
    first_us, last_us = sums.first_posted_at_us - US_PER_DAY, sums.last_posted_at_us + US_PER_DAY
    events = usage_events.c
    query = (
        select(events.gateway_seq)
        .where(events.gateway_boot_id == sums.boot_id, _BY_GATEWAYS)
        .where(events.posted_at_us.between(first_us, last_us))
    )
    return connection.scalars(query).all()


def _with_all_numbers(connection: Connection, found: Sequence[Boot]) -> Iterator[Boot]:
    """Where some seem to lack: billing of an earlier version has posted beside, whenever it did.

    Looks through all events, once for all boots.
    """
    lacking = {boot.boot_id: gaps for boot in found if (gaps := boot.gaps())}
    there = defaultdict[str, list[int]](list)
    events = usage_events.c
    for some in in_parts(list(lacking)):
        lowest = min(lacking[boot_id][0][0] for boot_id in some)
        highest = max(lacking[boot_id][-1][1] for boot_id in some)
        query = (
            select(events.gateway_boot_id, events.gateway_seq)
            .where(events.gateway_boot_id.in_(some), _BY_GATEWAYS)
            .where(events.gateway_seq.between(lowest, highest))
        )
        for boot_id, number in connection.execute(query):
            there[boot_id].append(number)
    for boot in found:
        known = set(boot.numbers)
        more = [number for number in there[boot.boot_id] if number not in known]
        yield Boot(boot.boot_id, [*boot.numbers, *more])
