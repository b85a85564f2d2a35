"""Who is admitted next: by priority, then by how little a tenant has been served, then by arrival.

Among equals of one tenant that came within ``prefix_window_s`` of the first, who finds most of its
prompt cached goes first, before it is evicted (SGLang's longest prefix match).  Nobody is overtaken
by who came later than that, and who has run before not at all.

Waiting raises a request by one level every ``aging_s``, up to level 0 and no further: nothing
starves behind a flood of urgent requests, and a deep backlog never outranks fairness.
"""

import bisect
import functools
import heapq
import math
from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain, islice, takewhile
from typing import Final

from replica.engine.fair_share import ServedTokens
from replica.engine.sequence import Sequence

Rank = tuple[float, int]

_LOOK_AHEAD: Final = 16  # requests of a tenant; each costs a few lookups


class Ranking:
    """How sequences compare."""

    def __init__(self, aging_s: float) -> None:
        self._aging_s = aging_s

    def rank(self, sequence: Sequence) -> Rank:
        """A total order that never changes: a level of priority counts as so much waiting."""
        standing = sequence.standing
        return standing.submitted_at_s + standing.priority * self._aging_s, standing.arrival

    def level(self, sequence: Sequence, now_s: float) -> int:
        """Its priority by now; the least goes first."""
        if sequence.standing.priority <= 0:
            return sequence.standing.priority
        return max(0, math.ceil((self.rank(sequence)[0] - now_s) / self._aging_s))


class WaitingQueue:
    """One sorted queue per tenant."""

    def __init__(self, ranking: Ranking, prefix_window_s: float) -> None:
        self._ranking = ranking
        self._prefix_window_s = prefix_window_s
        self._by_tenant: dict[str, list[Sequence]] = {}
        self._num_sequences = 0
        self.num_queued_tokens = 0

    def __len__(self) -> int:
        return self._num_sequences

    def __iter__(self) -> Iterator[Sequence]:
        return chain.from_iterable(self._by_tenant.values())

    def add(self, sequence: Sequence) -> None:
        queue = self._by_tenant.setdefault(sequence.standing.tenant, [])
        bisect.insort(queue, sequence, key=self._ranking.rank)
        self._num_sequences += 1
        self.num_queued_tokens += sequence.num_queued_tokens

    def remove(self, sequence: Sequence) -> None:
        """As it was when it was added: nothing is computed for who waits, and no copy given up."""
        queue = self._by_tenant[sequence.standing.tenant]
        del queue[bisect.bisect_left(queue, self._ranking.rank(sequence), key=self._ranking.rank)]
        if not queue:
            del self._by_tenant[sequence.standing.tenant]
        self._num_sequences -= 1
        self.num_queued_tokens -= sequence.num_queued_tokens

    def in_order(
        self, now_s: float, served: ServedTokens, num_cached_blocks: Callable[[Sequence], int]
    ) -> Iterator[Sequence]:
        """Best first; the queue and ``served`` may change meanwhile.  O(tenants) to begin with.

        ``num_cached_blocks`` is asked once of each sequence that comes into question.
        """

        def key(sequence: Sequence) -> tuple[int, int, int, str]:
            standing = sequence.standing
            level = self._ranking.level(sequence, now_s)
            return level, served.of(standing.tenant), standing.arrival, standing.tenant

        heap = [key(queue[0]) for queue in self._by_tenant.values()]
        heapq.heapify(heap)
        rest_by_tenant: dict[str, deque[Sequence]] = {}
        hits = functools.cache(num_cached_blocks)
        while heap:
            *_, tenant = heapq.heappop(heap)
            if tenant not in rest_by_tenant:
                rest_by_tenant[tenant] = deque(self._by_tenant[tenant])
            rest = rest_by_tenant[tenant]
            yield self._take_next(rest, hits)
            if rest:
                heapq.heappush(heap, key(rest[0]))

    def _take_next(
        self, rest: deque[Sequence], num_cached_blocks: Callable[[Sequence], int]
    ) -> Sequence:
        first = rest[0]
        latest_s = first.standing.submitted_at_s + self._prefix_window_s

        def is_equal(other: Sequence) -> bool:
            standing = other.standing
            return (
                not other.has_run
                and standing.priority == first.standing.priority
                and standing.submitted_at_s <= latest_s
            )

        if first.has_run or len(rest) == 1:
            return rest.popleft()
        equals = list(takewhile(is_equal, islice(rest, _LOOK_AHEAD)))
        hits = [num_cached_blocks(sequence) for sequence in equals]
        index = hits.index(max(hits))
        chosen = rest[index]
        del rest[index]
        return chosen

    def check_invariants(self) -> None:
        """Raises AssertionError."""
        for queue in self._by_tenant.values():
            assert queue, "an empty queue is kept"
            assert queue == sorted(queue, key=self._ranking.rank), "a queue is out of order"
        num_sequences = sum(map(len, self._by_tenant.values()))
        assert self._num_sequences == num_sequences, "the waiting ones are miscounted"
        num_tokens = sum(sequence.num_queued_tokens for sequence in self)
        assert self.num_queued_tokens == num_tokens, "queued tokens are miscounted"
