"""Ours, and the public ones by their published algorithms and defaults.

The others see a pool as it is, hold when blind, lower the count at once, and do not drain: the
cluster picks who goes, and Kubernetes' grace period is all that a stream has.
"""

import math
from collections import deque
from collections.abc import Sequence

from autoscaler.decide import decide
from autoscaler.decision import Memory
from autoscaler.plan import Action, SetCount, plan
from autoscaler.policy import PoolPolicy
from autoscaler.pool import PoolState, VariantState


class Pandal:
    name = "pandal"
    period_s = 10.0

    def __init__(self, policy: PoolPolicy, drain_deadline_s: float) -> None:
        self._policy = policy
        self._drain_deadline_s = drain_deadline_s
        self._memory = Memory()

    def tick(self, state: PoolState) -> Sequence[Action]:
        decision = decide(state, self._policy, self._memory)
        self._memory = decision.memory
        return plan(
            state.variants,
            decision.wanted,
            now_s=state.now_s,
            drain_deadline_s=self._drain_deadline_s,
        )


class Hpa:
    """Kubernetes' HorizontalPodAutoscaler v2 on an AverageValue, with its default behaviour.

    Source: pkg/controller/podautoscaler, replica_calculator.go and horizontal.go.
    """

    period_s = 15.0
    _TOLERANCE = 0.1
    _DOWN_WINDOW_S = 300.0
    _UP_PODS = 4

    def __init__(self, name: str, target: float, *, counts_running: bool, most: int) -> None:
        self.name = name
        self._target = target
        self._counts_running = counts_running
        self._most = most
        self._recommended: deque[tuple[float, int]] = deque()

    def tick(self, state: PoolState) -> Sequence[Action]:
        (found,) = state.variants
        current = found.num_ordered
        if state.demand is None or current == 0:
            return ()
        waiting, running = _load(state)
        total = waiting + (running if self._counts_running else 0)
        usage = total / (self._target * current)
        proposed = current
        if abs(1.0 - usage) > self._TOLERANCE:
            proposed = math.ceil(total / self._target)
        self._recommended.append((state.now_s, proposed))
        while self._recommended[0][0] < state.now_s - self._DOWN_WINDOW_S:
            self._recommended.popleft()
        if proposed < current:
            proposed = min(current, max(count for _, count in self._recommended))
        return _set(found, min(proposed, max(2 * current, current + self._UP_PODS)), self._most)


class Kpa:
    """Knative's autoscaler on concurrency, stable and panic windows, default rates.

    Source: pkg/autoscaler/scaling/autoscaler.go.
    """

    name = "kpa"
    period_s = 2.0
    _STABLE_S, _PANIC_S = 60.0, 6.0
    _PANIC_RATIO, _MAX_UP, _MAX_DOWN = 2.0, 1000.0, 2.0

    def __init__(self, target: float, most: int) -> None:
        self._target = target
        self._most = most
        self._seen: deque[tuple[float, float]] = deque()
        self._panic_since_s: float | None = None
        self._most_in_panic = 0

    def tick(self, state: PoolState) -> Sequence[Action]:
        (found,) = state.variants
        if state.demand is None:
            return ()
        self._seen.append((state.now_s, sum(_load(state))))
        while self._seen[0][0] <= state.now_s - self._STABLE_S:
            self._seen.popleft()
        ready = max(1, found.num_ready)
        stable = self._desired(ready, state.now_s - self._STABLE_S)
        panic = self._desired(ready, state.now_s - self._PANIC_S)
        self._note_panic(panic / ready >= self._PANIC_RATIO, state.now_s)
        if self._panic_since_s is None:
            return _set(found, stable, self._most)
        self._most_in_panic = max(self._most_in_panic, stable, panic)
        return _set(found, self._most_in_panic, self._most)

    def _desired(self, ready: int, since_s: float) -> int:
        recent = [count for at_s, count in self._seen if at_s > since_s]
        wanted = math.ceil(sum(recent) / len(recent) / self._target)
        return min(max(wanted, math.floor(ready / self._MAX_DOWN)), math.ceil(self._MAX_UP * ready))

    def _note_panic(self, is_over: bool, now_s: float) -> None:
        if is_over:
            self._panic_since_s = now_s
        elif self._panic_since_s is not None and now_s > self._panic_since_s + self._STABLE_S:
            self._panic_since_s, self._most_in_panic = None, 0


class SupplyDemand:
    """Demand against supply with what is pending counted in, as llm-d's second autoscaler did.

    In slots, which its token formula comes to where slots and not memory end a batch.
    """

    name = "supply/demand"
    period_s = 15.0
    _UP_RATIO, _DOWN_RATIO, _CAPACITY_RATIO = 0.85, 0.70, 0.80

    def __init__(self, num_slots: int, most: int) -> None:
        self._capacity = num_slots * self._CAPACITY_RATIO
        self._most = most

    def tick(self, state: PoolState) -> Sequence[Action]:
        (found,) = state.variants
        if state.demand is None:
            return ()
        demand = sum(_load(state))
        required = demand / self._UP_RATIO - found.num_ordered * self._capacity
        spare = found.num_ready * self._capacity - demand / self._DOWN_RATIO
        count = found.num_ordered
        if required > 0:
            count += math.ceil(required / self._capacity)
        elif spare > 0:
            count -= math.floor(spare / self._capacity)
        return _set(found, count, self._most)


def _load(state: PoolState) -> tuple[int, int]:
    """Waiting and running."""
    return state.num_waiting, sum(load.num_running for load in state.loads)


def _set(found: VariantState, count: int, most: int) -> Sequence[Action]:
    bounded = min(max(1, count), most)
    if bounded == found.num_ordered:
        return ()
    return (SetCount(found.name, found.num_ordered, bounded),)
