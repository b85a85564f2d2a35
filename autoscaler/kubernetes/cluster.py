"""The autoscaler's port to Kubernetes: one ReplicaPool, its workloads, its pods.

Counts are read and written at the scale subresource; pods are watched; a drain is an annotation
first and a word to the replica second, so that a crash between the two is seen and mended, and is
undone the other way round.  Which pod goes is the ReplicaSet's choice: the released one is the
cheapest to delete, and if another went, the next look sees it and the drain is undone.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

from autoscaler.cluster import Address, ClusterView
from autoscaler.errors import Absent, ClusterRefused, SourceFailed, SourceRefused
from autoscaler.kubernetes import paths
from autoscaler.kubernetes.cold_starts import ColdStarts
from autoscaler.kubernetes.conflicts import conflict_with
from autoscaler.kubernetes.names import DELETION_COST, DRAINING_SINCE, RELEASED_TO
from autoscaler.kubernetes.notebook import Leadership, Notebook
from autoscaler.kubernetes.objects import Listed, Pod, Pool, Scale, Scaler, decoded
from autoscaler.kubernetes.pods import (
    Expectation,
    address_of,
    has_yet_to_start,
    is_counted,
    replica_of,
    unschedulable_message,
)
from autoscaler.kubernetes.resource import PoolSpec, TargetVariant
from autoscaler.kubernetes.targets import Scalable, Targets
from autoscaler.kubernetes.wire import Json
from autoscaler.pool import VariantState

# What deleting a pod costs, beside 0 for one that nobody has priced: the released go first, and if
# somebody else lowers the count, those that drain go before those that do not.
_RELEASED_COST: Final = "-1000"
_DRAINING_COST: Final = "-100"


class PodSource(Protocol):
    """Pods by name, as last heard of.  Raises ClusterRefused."""

    async def matching(self, label_selector: str) -> Mapping[str, Pod]: ...


class ReplicaLine(Protocol):
    """A word to a replica.  Raises SourceFailed."""

    async def cordon(self, address: Address) -> None: ...

    async def uncordon(self, address: Address) -> None: ...


@dataclass(frozen=True, slots=True)
class Home:
    """What all pools of a process share."""

    api: Scalable
    namespace: str
    leadership: Leadership
    pods: PodSource
    replicas: ReplicaLine
    pools: Callable[[], Iterable[Pool]]  # all of the namespace
    now_s: Callable[[], float]


class KubernetesCluster:
    def __init__(self, home: Home, spec: PoolSpec, notebook: Notebook) -> None:
        self._home = home
        self._spec = spec
        self._notebook = notebook
        self._targets = Targets(home.api, home.namespace, home.leadership)
        self._scales: dict[str, Scale] = {}
        self._seen: dict[str, Pod] = {}
        self._written: dict[str, Pod] = {}  # as we wrote them, until the watch has told
        self._cold_starts: dict[str, ColdStarts] = {}  # by variant
        self.unschedulable: str | None = None  # the scheduler's words of one of them

    def follow(self, spec: PoolSpec) -> None:
        self._spec = spec

    async def observe(self) -> ClusterView:
        await self._notebook.read()
        conflict = conflict_with(self._spec, await self._scalers(), self._home.pools())
        self._seen, self.unschedulable = {}, None
        states, addresses = [], {}
        for variant in self._spec.variants:
            pods = await self._observed(variant)
            expected = Expectation(variant.cold_start_s, self._spec.metrics_port)
            states.append(self._state(variant, expected, pods))
            found = ((pod.metadata.name, address_of(pod, expected)) for pod in pods)
            addresses.update({name: address for name, address in found if address is not None})
        self._written = {name: pod for name, pod in self._written.items() if name in self._seen}
        await self._mend_cordons(addresses)
        return ClusterView(tuple(states), addresses, conflict)

    async def cordon(self, replica: str, *, at_s: float) -> None:
        await self._annotate(
            replica, {DRAINING_SINCE: f"{at_s:.3f}", DELETION_COST: _DRAINING_COST}
        )
        address = self._address(replica)
        if address is not None:
            with suppress(SourceFailed):  # the next look tells it again
                await self._home.replicas.cordon(address)

    async def uncordon(self, replica: str) -> None:
        address = self._address(replica)
        if address is not None:
            await self._reopen(replica, address)
        await self._annotate(
            replica, {DRAINING_SINCE: None, RELEASED_TO: None, DELETION_COST: None}
        )

    async def release(self, replica: str, *, released_to: int) -> None:
        await self._annotate(
            replica, {RELEASED_TO: str(released_to), DELETION_COST: _RELEASED_COST}
        )

    async def set_count(self, variant: str, *, seen: int, wanted: int) -> None:
        target = next(v.target for v in self._spec.variants if v.name == variant)
        known = self._scales[variant]
        if known.spec.replicas != seen:
            raise ClusterRefused(f"{variant}: the count is {known.spec.replicas}, not {seen}")
        await self._notebook.note_order(variant, seen=seen, wanted=wanted)
        self._scales[variant] = await self._targets.set_count(target, known, wanted)
        self._notebook.settle(variant, wanted)

    async def _observed(self, variant: TargetVariant) -> Sequence[Pod]:
        scale = await self._targets.scale(variant.target)
        if scale.status.selector == "":
            raise ClusterRefused(f"{variant.target.kind}/{variant.target.name}: no selector yet")
        self._scales[variant.name] = scale
        found = await self._home.pods.matching(scale.status.selector)
        pods = [pod for pod in self._newest(found) if is_counted(pod)]
        self._seen.update((pod.metadata.name, pod) for pod in pods)
        return pods

    def _state(
        self, variant: TargetVariant, expected: Expectation, pods: Sequence[Pod]
    ) -> VariantState:
        count = self._scales[variant.name].spec.replicas
        starts = self._starts_of(variant.name)
        starts.note(pods)
        written = self._notebook.num_written(variant.name, count)
        if written is None and self._home.leadership.may_act():
            self._notebook.settle(variant.name, count)  # found so: the next change is somebody's
        told = (unschedulable_message(pod) for pod in pods)
        self.unschedulable = next((t for t in told if t is not None), self.unschedulable)
        return VariantState(
            variant.name,
            count,
            tuple(replica_of(pod, expected, self._home.now_s()) for pod in pods),
            written,
            starts.newest_s,
        )

    def _starts_of(self, variant: str) -> ColdStarts:
        """A process begins with what the one before has noted in the status."""
        if variant not in self._cold_starts:
            assert self._notebook.pool is not None, "read first"
            known = self._notebook.pool.status.variants
            noted = next((v.cold_starts_seconds for v in known if v.name == variant), ())
            self._cold_starts[variant] = ColdStarts(noted)
        return self._cold_starts[variant]

    async def _mend_cordons(self, addresses: Mapping[str, Address]) -> None:
        """Told again at every look: a word may have been lost, or a replica begun anew."""
        if not self._home.leadership.may_act() or self._spec.is_dry_run:
            return
        words = [
            self._home.replicas.cordon(address)
            for name, address in addresses.items()
            if DRAINING_SINCE in self._seen[name].metadata.annotations
        ]
        words += [
            self._home.replicas.uncordon(address)
            for name, pod in self._seen.items()
            if _may_be_closed(pod) and (address := self._address(name)) is not None
        ]
        for answer in await asyncio.gather(*words, return_exceptions=True):
            if isinstance(answer, BaseException) and not isinstance(answer, SourceFailed):
                raise answer

    def _newest(self, found: Mapping[str, Pod]) -> list[Pod]:
        """What a watch has not told yet is known from the answers to our own writes."""
        for name in found.keys() & self._written.keys():
            if not _is_newer(self._written[name], found[name]):
                del self._written[name]
        return [self._written.get(name, pod) for name, pod in found.items()]

    async def _scalers(self) -> list[tuple[str, Scaler]]:
        found = []
        for kind, path in paths.scalers(self._home.namespace):
            try:
                body = await self._home.api.get(path)
            except Absent:  # no such kind in this cluster
                continue
            listed = decoded(body, Listed[Scaler])
            found += [(kind, scaler) for scaler in listed.items]
        return found

    def _address(self, replica: str) -> Address | None:
        ip = self._pod(replica).status.pod_ip
        return None if ip == "" else Address(ip, self._spec.metrics_port)

    def _pod(self, replica: str) -> Pod:
        if replica not in self._seen:
            raise Absent(f"{replica} is gone")
        return self._seen[replica]

    async def _annotate(self, replica: str, annotations: Mapping[str, str | None]) -> None:
        """The uid says which pod was meant: a namesake is refused as a conflict."""
        if not self._home.leadership.may_act():
            raise ClusterRefused("another process leads")
        meant: Json = {"uid": self._pod(replica).metadata.uid, "annotations": dict(annotations)}
        path = f"{paths.pods(self._home.namespace)}/{replica}"
        answer = await self._home.api.patch(path, {"metadata": meant})
        self._written[replica] = decoded(answer, Pod)

    async def _reopen(self, replica: str, address: Address) -> None:
        """The annotation stays until the replica has heard: or it would wait for work for ever."""
        try:
            with suppress(SourceRefused):  # an engine that knows no cordon was never closed
                await self._home.replicas.uncordon(address)
        except SourceFailed as exc:
            raise ClusterRefused(f"{replica}: {exc}") from exc


def _may_be_closed(pod: Pod) -> bool:
    """It was ready, is not, and is not to drain: a word that came late may have closed it."""
    ready = pod.status.condition("Ready")
    if ready is None or ready.status == "True" or has_yet_to_start(pod):
        return False
    is_leaving = pod.metadata.deletion_timestamp is not None
    return not is_leaving and DRAINING_SINCE not in pod.metadata.annotations


def _is_newer(one: Pod, other: Pod) -> bool:
    """https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-versions"""
    if one.metadata.uid != other.metadata.uid:
        return False
    ours, theirs = one.metadata.resource_version, other.metadata.resource_version
    return (len(ours), ours) > (len(theirs), theirs)
