"""Which variants to add, and which to take away: the cheapest sufficient ones (pure)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

EPSILON: Final = 1e-6  # tokens a second: a rounding error is no need


@dataclass(frozen=True, slots=True)
class Offer:
    """A variant as the mix sees it."""

    name: str
    tokens_per_s: float
    cost_usd_per_h: float
    num_available: int

    @property
    def usd_per_token_per_s(self) -> float:
        return self.cost_usd_per_h / self.tokens_per_s


def cheapest_sufficient(
    need_tokens_per_s: float, offers: Sequence[Offer], max_replicas: int
) -> Mapping[str, int]:
    """How many of each.  All that there is, if that does not suffice.

    Exact for the cost of one purchase: branches on the cheapest offer per token first and leaves a
    branch that cannot become cheaper than the best found.
    """
    ranked = sorted(offers, key=lambda offer: (offer.usd_per_token_per_s, offer.name))
    search = _Search(ranked)
    search.descend(0, need_tokens_per_s, max_replicas, ())
    if search.best is None:
        return _everything(ranked, max_replicas)
    return dict(zip((offer.name for offer in ranked), search.best, strict=True))


class _Search:
    def __init__(self, offers: Sequence[Offer]) -> None:
        self._offers = offers
        self.best: tuple[int, ...] | None = None
        self._best_key = (float("inf"), 0)

    def descend(self, index: int, need: float, room: int, chosen: tuple[int, ...]) -> None:
        if index == len(self._offers):
            if need <= EPSILON:
                self._keep_if_better(chosen)
            return
        offer = self._offers[index]
        if self._cost(chosen) + max(0.0, need) * offer.usd_per_token_per_s > self._best_key[0]:
            return
        most = min(offer.num_available, room, _replicas_for(need, offer.tokens_per_s))
        for count in range(most, -1, -1):
            self.descend(
                index + 1, need - count * offer.tokens_per_s, room - count, (*chosen, count)
            )

    def _keep_if_better(self, chosen: tuple[int, ...]) -> None:
        key = (self._cost(chosen), sum(chosen))
        if key < self._best_key:
            self.best, self._best_key = chosen, key

    def _cost(self, chosen: tuple[int, ...]) -> float:
        pairs = zip(chosen, self._offers, strict=False)  # the first of them are chosen so far
        return sum(count * offer.cost_usd_per_h for count, offer in pairs)


def _replicas_for(need_tokens_per_s: float, tokens_per_s: float) -> int:
    """Rounded up, but not for a rounding error."""
    return max(0, math.ceil((need_tokens_per_s - EPSILON) / tokens_per_s))


def _everything(ranked: Sequence[Offer], max_replicas: int) -> Mapping[str, int]:
    """The largest first: room is counted in replicas."""
    counts = {offer.name: 0 for offer in ranked}
    for offer in sorted(ranked, key=lambda offer: -offer.tokens_per_s):
        counts[offer.name] = min(offer.num_available, max_replicas - sum(counts.values()))
    return counts


def cheapest_order(offers: Sequence[Offer]) -> Sequence[str]:
    """By the cost of work."""
    return [o.name for o in sorted(offers, key=lambda o: (o.usd_per_token_per_s, o.name))]


def dearest_order(offers: Sequence[Offer]) -> Sequence[str]:
    """In which order variants give up replicas."""
    return cheapest_order(offers)[::-1]
