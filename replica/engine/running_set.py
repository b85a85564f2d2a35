"""The sequences that own blocks, in order of rank, and how many of them each tenant has."""

import bisect
from collections import Counter
from collections.abc import Iterator
from typing import TypeVar

from replica.engine.fair_share import ServedTokens
from replica.engine.sequence import Sequence
from replica.engine.waiting_queue import Ranking


class RunningSet:
    def __init__(self, ranking: Ranking) -> None:
        self._ranking = ranking
        self._sequences: list[Sequence] = []  # sorted by rank
        self._num_by_tenant: Counter[str] = Counter()
        self._num_by_priority: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences)

    @property
    def last(self) -> Sequence:
        """The one that gives way first."""
        return self._sequences[-1]

    def add(self, sequence: Sequence) -> None:
        bisect.insort(self._sequences, sequence, key=self._ranking.rank)
        self._num_by_tenant[sequence.standing.tenant] += 1
        self._num_by_priority[sequence.standing.priority] += 1
        sequence.is_running = True

    def remove(self, sequence: Sequence) -> None:
        rank = self._ranking.rank
        del self._sequences[bisect.bisect_left(self._sequences, rank(sequence), key=rank)]
        _take_one(self._num_by_tenant, sequence.standing.tenant)
        _take_one(self._num_by_priority, sequence.standing.priority)
        sequence.is_running = False

    def in_order_of_service(self) -> list[tuple[Sequence, int]]:
        """Decoding ones, then prefilling ones, each by rank and with what it is missing."""
        decoding: list[tuple[Sequence, int]] = []
        prefilling: list[tuple[Sequence, int]] = []
        for sequence in self._sequences:
            num_missing = sequence.num_missing_tokens
            if num_missing == 1:
                decoding.append((sequence, 1))
            elif num_missing:
                prefilling.append((sequence, num_missing))
        return decoding + prefilling

    def displaceable(
        self, sequence: Sequence, served: ServedTokens, slack_tokens: int, now_s: float
    ) -> Iterator[Sequence]:
        """Whom a waiting sequence may displace, last rank first.

        Those of a lesser priority; of equal priority, those of a tenant that both runs more and has
        been served more by ``slack_tokens``.  A tenant that is behind in tokens and runs as many
        sequences catches up without.
        """
        level = self._ranking.level(sequence, now_s)
        tenant = sequence.standing.tenant
        most_served = served.of(tenant) + slack_tokens
        num_running = self._num_by_tenant.copy()
        is_anyone_ahead = any(served.of(t) > most_served for t in num_running)
        if not is_anyone_ahead and max(self._num_by_priority, default=level) <= level:
            return  # the usual case, without looking at everyone
        for victim in reversed(self._sequences):
            victim_level = self._ranking.level(victim, now_s)
            owner = victim.standing.tenant
            if level < victim_level or (
                level == victim_level
                and num_running[owner] > num_running[tenant]
                and served.of(owner) > most_served
            ):
                num_running[owner] -= 1
                yield victim

    def check_invariants(self) -> None:
        """Raises AssertionError."""
        in_order = sorted(self._sequences, key=self._ranking.rank)
        assert self._sequences == in_order, "the running ones are out of order"
        assert all(s.is_running for s in self._sequences), "one of the running ones does not run"
        by_tenant = Counter(s.standing.tenant for s in self._sequences)
        assert by_tenant == self._num_by_tenant, "a tenant's running ones are miscounted"
        by_priority = Counter(s.standing.priority for s in self._sequences)
        assert by_priority == self._num_by_priority, "a priority's running ones are miscounted"


_Key = TypeVar("_Key")


def _take_one(counter: Counter[_Key], key: _Key) -> None:
    """No zero stays: keys are those that count."""
    counter[key] -= 1
    if not counter[key]:
        del counter[key]
