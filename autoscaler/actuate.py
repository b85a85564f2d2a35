"""Actions to the cluster, one by one: what is refused is left to the next tick."""

from collections.abc import Sequence

from autoscaler.cluster import Cluster
from autoscaler.plan import Action, Cordon, Release, SetCount, Uncordon


async def actuate(cluster: Cluster, action: Action, *, now_s: float) -> None:
    """Raises ClusterRefused."""
    match action:
        case Cordon(_, replica):
            await cluster.cordon(replica, at_s=now_s)
        case Uncordon(_, replica):
            await cluster.uncordon(replica)
        case Release(_, replica, released_to):
            await cluster.release(replica, released_to=released_to)
        case SetCount(variant, seen, wanted):
            await cluster.set_count(variant, seen=seen, wanted=wanted)


def counts_written(actions: Sequence[Action]) -> dict[str, int]:
    return {a.variant: a.wanted for a in actions if isinstance(a, SetCount)}
