"""The elector's one Lease in the API server."""

import msgspec

from autoscaler.errors import Absent
from autoscaler.kubernetes import paths
from autoscaler.kubernetes.api import KubernetesApi
from autoscaler.kubernetes.objects import Lease, LeaseSpec, decoded
from autoscaler.kubernetes.wire import Json


class KubernetesLease:
    def __init__(self, api: KubernetesApi, namespace: str, name: str) -> None:
        self._api = api
        self._collection = paths.leases(namespace)
        self._name = name

    async def read(self) -> Lease | None:
        try:
            body = await self._api.get(f"{self._collection}/{self._name}")
        except Absent:
            return None
        return decoded(body, Lease)

    async def create(self, spec: LeaseSpec) -> None:
        await self._api.create(self._collection, self._document(spec, {}))

    async def replace(self, known: Lease, spec: LeaseSpec) -> None:
        """What others have said of it stays: a chart knows its own by that."""
        metadata = known.metadata
        said = {
            "resourceVersion": metadata.resource_version,
            "labels": dict(metadata.labels),
            "annotations": dict(metadata.annotations),
        }
        document = self._document(spec, said)
        await self._api.replace(f"{self._collection}/{self._name}", document)

    def _document(self, spec: LeaseSpec, said: Json) -> Json:
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self._name, **said},
            "spec": msgspec.to_builtins(spec),
        }
