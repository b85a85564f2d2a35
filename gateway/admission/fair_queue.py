"""Who goes next where not everybody can go at once: by weighted fair shares of tokens.

Interactive and standard tenants take turns by how little they have had (``VirtualCounters``).
Who has lately had more than its share goes after the others, and only where there is room to spare.
So does batch, except that who has waited long enough takes turns like everybody: it never starves.
Who waits holds up nobody for whom there is room where he himself may not go.  The queue is short
and bounded.  When it is full, whoever has most in it loses the newest, so a flood crowds out nobody
but itself.

Pure: it knows neither clock nor event loop.
"""

from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Generic, TypeVar

from contracts.admission import ServiceClass
from contracts.names import TenantId
from gateway.admission.recent_shares import RecentShares
from gateway.admission.share import Share
from gateway.admission.virtual_counters import VirtualCounters

T = TypeVar("T")
Lane = tuple[str, ...]  # where one may go beside where all may

_MAX_UNSHARED = 10_000  # tenants served within a tenth of a second


@dataclass(frozen=True, slots=True)
class Service:
    """Tokens charged, and those given back of them: apart, so that sums of both only grow."""

    charged: int = 0
    returned: int = 0

    @property
    def num_tokens(self) -> int:
        return self.charged - self.returned

    def __add__(self, other: "Service") -> "Service":
        return Service(self.charged + other.charged, self.returned + other.returned)

    def __sub__(self, other: "Service") -> "Service":
        return Service(self.charged - other.charged, self.returned - other.returned)


_NONE = Service()


@dataclass(frozen=True, slots=True, eq=False)
class Turn(Generic[T]):
    """One request's turn to come; ``holder`` is whoever waits for it."""

    share: Share
    num_tokens: int  # that it is charged: its prompt, and what is reserved for the answer
    prompt_tokens: int  # that others wait for
    entered_s: float
    deadline_s: float
    holder: T
    lane: Lane = ()


class FairQueue(Generic[T]):
    def __init__(self, *, max_waiting: int, ageing_s: float) -> None:
        self._max_waiting = max_waiting
        self._ageing_s = ageing_s
        self._counters = VirtualCounters()
        self._recent = RecentShares()
        self._by_tenant: dict[TenantId, deque[Turn[T]]] = {}
        self._unshared: dict[Share, Service] = {}
        self._num_waiting = 0
        self.prompt_tokens = 0  # of all that wait

    def __len__(self) -> int:
        return self._num_waiting

    def __iter__(self) -> Iterator[Turn[T]]:
        return chain.from_iterable(self._by_tenant.values())

    def asks(self, share: Share, now_s: float) -> None:
        """It wants its share now."""
        self._recent.asks(share, now_s)

    def charge(self, share: Share, num_tokens: int, now_s: float) -> None:
        """Served here."""
        self._count(share, num_tokens)
        self._recent.charge(share, num_tokens, now_s)

    def correct(self, share: Share, num_tokens: int, charged_s: float, now_s: float) -> None:
        """What was charged then was so much too little; negative: too much."""
        self._count(share, num_tokens)
        self._recent.correct(share, num_tokens, charged_s, now_s)

    def _count(self, share: Share, num_tokens: int) -> None:
        self._counters.charge(share.tenant, share.weighted(num_tokens))
        service = Service(max(0, num_tokens), max(0, -num_tokens))
        self._unshared[share] = self._unshared.get(share, _NONE) + service
        if len(self._unshared) > _MAX_UNSHARED:
            self._unshared.clear()  # nobody shares

    def unshared(self) -> Mapping[Share, Service]:
        """What other gateways do not know of; nothing for whoever only waits."""
        waiting = (turns[0].share for turns in self._by_tenant.values())
        return {**dict.fromkeys(waiting, _NONE), **self._unshared}

    def told(self, share: Share, service: Service) -> None:
        """Others know of it now."""
        known = self._unshared.pop(share, _NONE)
        left = Service(
            max(0, known.charged - service.charged), max(0, known.returned - service.returned)
        )
        if left != _NONE:
            self._unshared[share] = left

    def served_elsewhere(self, share: Share, num_tokens: int) -> None:
        """Negative where another gateway corrects a charge."""
        self._counters.charge(share.tenant, share.weighted(num_tokens))

    def push(self, turn: Turn[T]) -> Turn[T] | None:
        """Whoever must leave for it: maybe the newcomer."""
        tenant = turn.share.tenant
        loser = None
        if self._num_waiting >= self._max_waiting:
            loser = self._newest_of_the_longest(tenant)
            if loser is None:
                return turn
            self.remove(loser)
        self._by_tenant.setdefault(tenant, deque()).append(turn)
        self._counters.enter(tenant)
        self._num_waiting += 1
        self.prompt_tokens += turn.prompt_tokens
        return loser

    def first(self, now_s: float, passed: Collection[Lane] = ()) -> Turn[T] | None:
        """Whose turn it is, but for those lanes.  O(tenants that wait)."""
        heads = [turns[0] for turns in self._by_tenant.values() if turns[0].lane not in passed]
        if not heads:
            return None
        in_turn = [turn for turn in heads if not self.is_in_slack(turn, now_s)]
        return min(in_turn or heads, key=self._rank)

    def is_in_slack(self, turn: Turn[T], now_s: float) -> bool:
        """It may go only where there is room to spare."""
        is_aged = now_s - turn.entered_s >= self._ageing_s
        return not is_aged and self.gets_slack(turn.share, now_s)

    def gets_slack(self, share: Share, now_s: float) -> bool:
        """And no more, at first."""
        return share.service_class is ServiceClass.BATCH or self._recent.is_over(share, now_s)

    def ahead(self, share: Share, now_s: float) -> Collection[Lane]:
        """Of whom one that enters now would be behind.  None: it would be ``first``."""
        heads = [turns[0] for turns in self._by_tenant.values()]
        if not heads or share.tenant in self._by_tenant:
            return {turn.lane for turn in heads}
        entering, gets_slack = self._counters.entering(share.tenant), self.gets_slack(share, now_s)

        def is_ahead(turn: Turn[T]) -> bool:
            is_in_slack = self.is_in_slack(turn, now_s)
            if is_in_slack != gets_slack:
                return gets_slack
            return self._counters.of(turn.share.tenant) <= entering

        return {turn.lane for turn in heads if is_ahead(turn)}

    def take(self, turn: Turn[T], now_s: float) -> None:
        """It goes, and is charged."""
        self._counters.take_turn(turn.share.tenant)
        self.charge(turn.share, turn.num_tokens, now_s)
        self.remove(turn)

    def remove(self, turn: Turn[T]) -> bool:
        """False: it was not there (any more)."""
        tenant = turn.share.tenant
        turns = self._by_tenant.get(tenant)
        if turns is None or turn not in turns:
            return False
        turns.remove(turn)
        if not turns:
            del self._by_tenant[tenant]
        self._counters.leave(tenant)
        self._num_waiting -= 1
        self.prompt_tokens -= turn.prompt_tokens
        return True

    def overdue(self, now_s: float) -> list[Turn[T]]:
        return [turn for turn in self if turn.deadline_s <= now_s]

    def tokens_before(self, tenant: TenantId) -> int:
        """Of prompts that probably go before one that enters now, if everybody takes turns."""
        own = sum(turn.prompt_tokens for turn in self._by_tenant.get(tenant, ()))
        num_others = len(self._by_tenant) - (tenant in self._by_tenant)
        return min(self.prompt_tokens, own * (1 + num_others))

    def _rank(self, turn: Turn[T]) -> tuple[float, float]:
        return self._counters.of(turn.share.tenant), turn.entered_s

    def _newest_of_the_longest(self, entering: TenantId) -> Turn[T] | None:
        tenant = max(self._by_tenant, key=lambda t: len(self._by_tenant[t]))
        longest = self._by_tenant[tenant]
        if len(longest) <= 1 + len(self._by_tenant.get(entering, ())):
            return None
        return longest[-1]
