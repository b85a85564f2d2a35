"""From what is wanted and what is there to the next actions (pure).

A replica leaves in four steps, each seen again in the next observation, so a crash between any two
loses nothing and repeats nothing: cordon (no new requests), wait until it has none, release
(the cluster may delete this one), lower the count.  Up goes the other way first: a drain is undone
before anything is ordered, because that replica is warm.

If the cluster deletes another replica than the released one, the drain is undone: its count is
reached, and the released one serves again.

A drain is undone only where the replica tells its load: one that is silent would not hear the word,
and others are ordered in its place.  Its deadline ends it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from autoscaler.pool import Phase, Replica, VariantState


@dataclass(frozen=True, slots=True)
class Cordon:
    variant: str
    replica: str


@dataclass(frozen=True, slots=True)
class Uncordon:
    variant: str
    replica: str


@dataclass(frozen=True, slots=True)
class Release:
    variant: str
    replica: str
    released_to: int  # the count that will be written next


@dataclass(frozen=True, slots=True)
class SetCount:
    """Refused by the cluster if the count is not ``seen`` any more."""

    variant: str
    seen: int
    wanted: int


Action = Cordon | Uncordon | Release | SetCount


def plan(
    variants: tuple[VariantState, ...],
    wanted: Mapping[str, int],
    *,
    now_s: float,
    drain_deadline_s: float,
) -> list[Action]:
    """In the order in which they are to be done."""
    actions: list[Action] = []
    for found in variants:
        actions += _plan_variant(found, wanted[found.name], now_s, drain_deadline_s)
    return actions


def _plan_variant(
    found: VariantState, wanted: int, now_s: float, drain_deadline_s: float
) -> Iterator[Action]:
    survived = _survivors_of_release(found)
    yield from (Uncordon(found.name, r.name) for r in survived if r.load is not None)
    silent = [replica for replica in survived if replica.load is None]
    kept, num_unmade = max(0, found.num_kept - len(silent)), 0
    if wanted > kept:
        yield from _grow(found, wanted - kept)
        return
    if wanted < kept:
        num_unmade = min(found.num_unseen, kept - wanted)  # what is not there leaves nobody
        victims = _victims(found, kept - wanted - num_unmade)
        yield from (Cordon(found.name, v.name) for v in victims if v.phase is Phase.READY)
        ripe = [victim for victim in victims if victim.phase is not Phase.READY]
    else:
        ripe = []
    draining = [r for r in [*_draining(found), *silent] if _may_go(r, found)]
    ripe += [r for r in draining if _has_drained(r, now_s, drain_deadline_s)]
    yield from _retire(found, ripe, num_unmade)


def _grow(found: VariantState, num_more: int) -> Iterator[Action]:
    able = [replica for replica in _draining(found) if replica.load is not None]
    undone = sorted(able, key=_load_order, reverse=True)[:num_more]
    yield from (Uncordon(found.name, replica.name) for replica in undone)
    if num_more > len(undone):
        yield SetCount(found.name, found.num_ordered, found.num_ordered + num_more - len(undone))


def _retire(found: VariantState, ripe: list[Replica], num_unmade: int) -> Iterator[Action]:
    target = found.num_ordered - len(ripe) - num_unmade
    if target == found.num_ordered:
        return
    for replica in ripe:
        if replica.released_to != target:
            yield Release(found.name, replica.name, target)
    yield SetCount(found.name, found.num_ordered, target)


def _draining(found: VariantState) -> list[Replica]:
    """Those that still count."""
    return [r for r in found.replicas if r.phase is Phase.DRAINING and not found.is_unordered(r)]


def _survivors_of_release(found: VariantState) -> list[Replica]:
    """Released, the count written, and no replica above the count is left to be deleted."""
    released = [r for r in found.replicas if r.phase is Phase.DRAINING and found.is_unordered(r)]
    num_surplus = found.num_live - found.num_ordered
    return released[max(0, num_surplus) :]


def _may_go(replica: Replica, found: VariantState) -> bool:
    """Were a silent one's count lowered now, one that has yet to start would be deleted instead."""
    num_before_it = found.count(Phase.STARTING) + found.count(Phase.UNSCHEDULABLE)
    return replica.load is not None or num_before_it == 0


def _has_drained(replica: Replica, now_s: float, drain_deadline_s: float) -> bool:
    """Unknown load is not an empty one: only the deadline ends that wait."""
    load = replica.load
    if load is not None and load.num_running + load.num_waiting == 0:
        return True
    since = replica.draining_since_s
    return since is not None and now_s - since >= drain_deadline_s


_VICTIM_ORDER = (Phase.UNSCHEDULABLE, Phase.STUCK, Phase.STARTING, Phase.READY)


def _victims(found: VariantState, num_victims: int) -> list[Replica]:
    """Who serves nobody goes first, then who serves the fewest; of equals the later name."""
    able = [r for r in found.replicas if r.phase in _VICTIM_ORDER]
    ranked = sorted(able, key=lambda r: r.name, reverse=True)
    ranked.sort(key=lambda r: (_VICTIM_ORDER.index(r.phase), _load_order(r)))
    return ranked[:num_victims]


def _load_order(replica: Replica) -> float:
    """Unknown counts as the busiest."""
    load = replica.load
    return float("inf") if load is None else load.num_running + load.num_waiting
