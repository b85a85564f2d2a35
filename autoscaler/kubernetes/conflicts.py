"""Who else scales a pool's targets (pure).

Two that write one count undo each other for ever, so where there is another, this one stands still
and says so.
"""

from collections.abc import Iterable, Sequence

from autoscaler.kubernetes.objects import Pool, Scaler
from autoscaler.kubernetes.resource import PoolSpec


def conflict_with(
    spec: PoolSpec, scalers: Iterable[tuple[str, Scaler]], pools: Iterable[Pool]
) -> str | None:
    """Kind and name of the first, and the target it shares.  ``scalers``: each with its kind."""
    targets = {(variant.target.kind, variant.target.name) for variant in spec.variants}
    for kind, scaler in scalers:
        reference = scaler.spec.scale_target_ref
        # KEDA's reference is to a Deployment where it does not say.
        target = (reference.kind or "Deployment", reference.name)
        if target in targets:
            return _told(kind, scaler.metadata.name, target)
    for pool in pools:
        if pool.metadata.name != spec.name:
            for target in _targets_of(pool):
                if target in targets:
                    return _told("ReplicaPool", pool.metadata.name, target)
    return None


def _targets_of(pool: Pool) -> Sequence[tuple[str, str]]:
    """As they stand in the resource, whether or not the rest of it makes sense."""
    variants = pool.spec.get("variants")
    found = []
    for variant in variants if isinstance(variants, list) else ():
        target = variant.get("target") if isinstance(variant, dict) else None
        if isinstance(target, dict):
            found.append((str(target.get("kind", "Deployment")), str(target.get("name", ""))))
    return found


def _told(kind: str, name: str, target: tuple[str, str]) -> str:
    return f"{kind}/{name} scales {target[0]}/{target[1]} too"
