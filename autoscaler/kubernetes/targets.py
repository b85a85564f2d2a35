"""The workloads whose counts are written: found by kind, read and written by their scale alone."""

from typing import Protocol

import msgspec

from autoscaler.errors import ClusterRefused, StaleWrite
from autoscaler.kubernetes import paths
from autoscaler.kubernetes.notebook import MAX_ATTEMPTS, Leadership
from autoscaler.kubernetes.objects import Scale, decoded
from autoscaler.kubernetes.resource import Target
from autoscaler.kubernetes.wire import Json


class _Resource(msgspec.Struct, frozen=True):
    name: str
    kind: str


class _Resources(msgspec.Struct, frozen=True):
    resources: tuple[_Resource, ...] = ()


class Scalable(Protocol):
    async def get(self, path: str, **query: str) -> bytes: ...

    async def patch(self, path: str, body: Json) -> bytes: ...


class Targets:
    def __init__(self, api: Scalable, namespace: str, leadership: Leadership) -> None:
        self._api = api
        self._namespace = namespace
        self._leadership = leadership
        self._plurals: dict[tuple[str, str], str] = {}  # discovered once: kinds do not change

    async def scale(self, target: Target) -> Scale:
        """Raises ClusterRefused."""
        return decoded(await self._api.get(await self._path(target)), Scale)

    async def set_count(self, target: Target, known: Scale, wanted: int) -> Scale:
        """On top of what was read; a version overtaken by a mere status is read again.

        Raises ClusterRefused, also when the count itself has changed.
        """
        for _ in range(MAX_ATTEMPTS):
            if not self._leadership.may_act():
                raise ClusterRefused("another process leads")
            body = {
                "metadata": {"resourceVersion": known.metadata.resource_version},
                "spec": {"replicas": wanted},
            }
            try:
                answer = await self._api.patch(await self._path(target), body)
            except StaleWrite:
                current = await self.scale(target)
                if current.spec.replicas != known.spec.replicas:
                    raise ClusterRefused(
                        f"{target.kind}/{target.name}: the count is {current.spec.replicas}, "
                        f"not {known.spec.replicas}"
                    ) from None
                known = current
                continue
            return decoded(answer, Scale)
        raise StaleWrite(f"{target.kind}/{target.name}: overtaken {MAX_ATTEMPTS} times")

    async def _path(self, target: Target) -> str:
        plural = await self._plural(target)
        owner = paths.collection(target.api_version, self._namespace, plural)
        return f"{owner}/{target.name}/scale"

    async def _plural(self, target: Target) -> str:
        key = target.api_version, target.kind
        if key not in self._plurals:
            body = await self._api.get(paths.api(target.api_version))
            found = decoded(body, _Resources).resources
            names = [r.name for r in found if r.kind == target.kind and "/" not in r.name]
            if not names:
                raise ClusterRefused(f"{target.api_version} has no kind {target.kind}")
            self._plurals[key] = names[0]
        return self._plurals[key]
