"""A gateway finds replicas by a service's EndpointSlices, with no more rights than its rules."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
import yaml

from autoscaler.kubernetes.api import KubernetesApi
from autoscaler.kubernetes.wire import Json
from gateway.discovery.endpoint_slices import EndpointSliceSource, Service
from gateway.discovery.kubernetes_client import ApiFailure, ApiServer, KubernetesClient
from gateway.discovery.membership import Members
from tests.kubernetes.conftest import eventually
from tests.support.control_plane import ControlPlane

RULES = Path(__file__).parents[2] / "helm" / "pandal" / "files" / "gateway-rules.yaml"
_numbers = itertools.count(1)


@dataclass
class Scene:
    api: KubernetesApi
    plane: ControlPlane
    namespace: str
    client: KubernetesClient
    published: list[Members]

    @property
    def slices(self) -> str:
        return f"/apis/discovery.k8s.io/v1/namespaces/{self.namespace}/endpointslices"

    async def put(self, name: str, *endpoints: Json, service: str = "replicas") -> None:
        labels = {"kubernetes.io/service-name": service}
        document: Json = {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": name, "labels": labels},
            "addressType": "IPv4",
            "ports": [{"name": "http", "port": 8000, "protocol": "TCP"}],
            "endpoints": list(endpoints),
        }
        with suppress(Exception):
            await self.api.delete(f"{self.slices}/{name}")
        await self.api.create(self.slices, document)

    async def patch(self, name: str, *endpoints: Json) -> None:
        await self.api.patch(f"{self.slices}/{name}", {"endpoints": list(endpoints)})

    async def until(self, *names: str) -> None:
        async def is_so() -> bool:
            return bool(self.published) and sorted(self.published[-1]) == sorted(names)

        await eventually(is_so, f"{names} to be found, last: {self.published[-1:]}")


def endpoint(name: str, address: str, **conditions: bool) -> Json:
    target = {"kind": "Pod", "name": name}
    return {
        "addresses": [address],
        "conditions": {"ready": True, **conditions},
        "targetRef": target,
    }


@asynccontextmanager
async def _scene(
    plane: ControlPlane, api: KubernetesApi, folder: Path, *, rules: list[Json]
) -> AsyncIterator[Scene]:
    namespace = f"gateways-{next(_numbers)}"
    await api.create("/api/v1/namespaces", {"metadata": {"name": namespace}})
    core = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
    await api.create(core, {"metadata": {"name": "gateway"}})
    await api.create(f"{rbac}/roles", {"metadata": {"name": "gateway"}, "rules": rules})
    subject = {"kind": "ServiceAccount", "name": "gateway", "namespace": namespace}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "gateway"}
    binding = {"metadata": {"name": "gateway"}, "roleRef": role, "subjects": [subject]}
    await api.create(f"{rbac}/rolebindings", binding)
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    answer = msgspec.json.decode(await api.create(f"{core}/gateway/token", request))
    token = folder / "token"
    token.write_text(answer["status"]["token"] + "\n")
    client = KubernetesClient(ApiServer(plane.server, plane.ca, token), timeout_s=10.0)
    yield Scene(api, plane, namespace, client, [])


@asynccontextmanager
async def following(scene: Scene) -> AsyncIterator[None]:
    service = Service(scene.namespace, "replicas", "http")
    source = EndpointSliceSource(scene.client, service, lambda: 0.5)
    task = asyncio.create_task(source.run(scene.published.append))
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_a_services_pods_come_and_go_with_its_slices(
    control_plane: ControlPlane, admin: KubernetesApi, tmp_path: Path
) -> None:
    rules = yaml.safe_load(RULES.read_text())
    async with _scene(control_plane, admin, tmp_path, rules=rules) as scene:
        await scene.put("one", endpoint("replica-0", "10.1.0.1"))
        await scene.put("others", endpoint("stranger", "10.9.0.1"), service="others")
        async with following(scene):
            await scene.until("replica-0")
            assert scene.published[-1] == {"replica-0": "http://10.1.0.1:8000"}
            await scene.put("two", endpoint("replica-1", "10.1.0.2"))
            await scene.until("replica-0", "replica-1")
            leaving = endpoint("replica-0", "10.1.0.1", ready=False, terminating=True)
            await scene.patch("one", leaving)
            await scene.until("replica-1")
            await scene.api.delete(f"{scene.slices}/two")
            await scene.until()


async def test_it_goes_on_when_the_api_server_restarts_and_history_is_gone(
    control_plane: ControlPlane, admin: KubernetesApi, tmp_path: Path
) -> None:
    rules = yaml.safe_load(RULES.read_text())
    async with _scene(control_plane, admin, tmp_path, rules=rules) as scene:
        await scene.put("one", endpoint("replica-0", "10.1.0.1"))
        async with following(scene):
            await scene.until("replica-0")
            await asyncio.to_thread(control_plane.kill_api_server)
            await asyncio.to_thread(control_plane.start_api_server)
            await asyncio.to_thread(control_plane.forget_history)
            await scene.put("two", endpoint("replica-1", "10.1.0.2"))
            await scene.until("replica-0", "replica-1")


async def test_it_may_read_slices_of_its_namespace_and_nothing_else(
    control_plane: ControlPlane, admin: KubernetesApi, tmp_path: Path
) -> None:
    rules = yaml.safe_load(RULES.read_text())
    async with _scene(control_plane, admin, tmp_path, rules=rules) as scene:

        async def may_read() -> bool:
            with suppress(ApiFailure):  # a role is known a moment after it was made
                return b"EndpointSliceList" in await scene.client.get(scene.slices)
            return False

        await eventually(may_read, "its role to be known")
        for path in (
            f"/api/v1/namespaces/{scene.namespace}/pods",
            f"/api/v1/namespaces/{scene.namespace}/secrets",
            "/apis/discovery.k8s.io/v1/endpointslices",
        ):
            with pytest.raises(ApiFailure, match="403"):
                await scene.client.get(path)
