"""One control plane for all of these tests, and a namespace, an identity and processes for each."""

import asyncio
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest
import yaml

from autoscaler.errors import ClusterRefused, StaleWrite
from autoscaler.kubernetes import paths
from autoscaler.kubernetes.api import KubernetesApi, connected
from autoscaler.kubernetes.definition import as_yaml
from autoscaler.kubernetes.wire import Json
from tests.kubernetes import objects
from tests.kubernetes.pod_fleet import PodFleet
from tests.support.control_plane import ControlPlane, kubebuilder_assets
from tests.support.helm import Helm, helm

PATIENCE_S = 90.0  # only a test that fails waits so long
_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    plane = ControlPlane(kubebuilder_assets(), tmp_path_factory.mktemp("kubernetes"))
    try:
        plane.start()
        asyncio.run(_furnished(plane))
        yield plane
    finally:
        plane.stop()


async def _furnished(plane: ControlPlane) -> None:
    """Three nodes of two GPUs each, and the resource's definition."""
    async with connected(plane.kubeconfig("admin"), request_timeout_s=20.0) as api:
        for i in range(3):
            await api.create("/api/v1/nodes", objects.node(f"gpu-{i}", 2))
        definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        await api.create(definitions, yaml.safe_load(as_yaml()))
        await eventually(lambda: _is_there(api), "the definition and the default account")


async def _is_there(api: KubernetesApi) -> bool:
    with suppress(ClusterRefused):
        await api.get(paths.pools("default"))
        await api.get("/api/v1/namespaces/default/serviceaccounts/default")
        return True
    return False


@pytest.fixture
async def admin(control_plane: ControlPlane) -> AsyncIterator[KubernetesApi]:
    async with connected(control_plane.kubeconfig("admin"), request_timeout_s=20.0) as api:
        yield api


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    return helm(4, tmp_path_factory.mktemp("helm"))


async def eventually(is_true: Callable[[], Awaitable[bool]], what: str) -> None:
    give_up_monotonic_s = time.monotonic() + PATIENCE_S
    refusal: ClusterRefused | None = None
    while time.monotonic() < give_up_monotonic_s:
        try:
            if await is_true():
                return
        except ClusterRefused as exc:  # an API server that has just begun anew refuses for a while
            refusal = exc
        await asyncio.sleep(0.1)
    pytest.fail(f"waited in vain: {what} ({refusal})")


def audited(plane: ControlPlane) -> list[Json]:
    """What has been asked of the API server, but for a line that is still being written."""
    whole, _, _ = plane.audit_log.read_text().rpartition("\n")
    return [json.loads(line) for line in whole.splitlines()]


async def install_definition(
    api: KubernetesApi, group: str, version: str, kind: str, plural: str
) -> None:
    """Of a kind that an operator brings."""
    definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    await api.create(definitions, objects.loose_definition(group, version, kind, plural))

    async def is_served() -> bool:
        with suppress(ClusterRefused):
            await api.get(f"/apis/{group}/{version}/{plural}")
            return True
        return False

    await eventually(is_served, f"{plural} to be served")


@dataclass
class Scene:
    """A namespace with one workload, what runs in its pods, and autoscalers."""

    api: KubernetesApi
    plane: ControlPlane
    namespace: str
    kubeconfig: Path
    folder: Path
    fleet: PodFleet
    name: str = "chat"
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start_autoscaler(self, **settings: object) -> subprocess.Popen[bytes]:
        number = len(self.processes)
        chosen = {
            "namespace": self.namespace, "kubeconfig": self.kubeconfig, "period_s": 0.4,
            "identity": f"autoscaler-{number}", "port": 0, "request_timeout_s": 3.0,
            "lease_duration_s": 8.0, "lease_renew_deadline_s": 4.0, "lease_retry_period_s": 0.4,
            "scrape_timeout_s": 1.0, "log_level": "debug", **settings,
        }  # fmt: skip
        environment = {f"AUTOSCALER_{k}".upper(): str(v) for k, v in chosen.items()}
        with (self.folder / f"autoscaler-{number}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "autoscaler"],
                stdout=log, stderr=log, env={**os.environ, **environment},
            )  # fmt: skip
        self.processes.append(process)
        return process

    def log(self, number: int) -> str:
        """But for a line that is still being written."""
        text = (self.folder / f"autoscaler-{number}.log").read_text()
        return text[: text.rfind("\n") + 1]

    async def get(self, path: str) -> Json:
        found: Json = msgspec.json.decode(await self.api.get(path))
        return found

    async def pool(self) -> Json:
        return await self.get(f"{paths.pools(self.namespace)}/{self.name}")

    async def condition(self, type_: str) -> tuple[str, str]:
        """Status and reason."""
        pool = await self.pool()
        for found in pool.get("status", {}).get("conditions", ()):
            if found["type"] == type_:
                return found["status"], found["reason"]
        return "", ""

    @property
    def deployment_path(self) -> str:
        return f"{paths.collection('apps/v1', self.namespace, 'deployments')}/{self.name}"

    async def count(self) -> int:
        deployment = await self.get(self.deployment_path)
        return int(deployment["spec"]["replicas"])

    async def set_count(self, count: int) -> None:
        """As ``kubectl scale`` does."""
        await self.api.patch(f"{self.deployment_path}/scale", {"spec": {"replicas": count}})

    async def until_count(self, is_right: Callable[[int], bool], what: str) -> None:
        async def is_true() -> bool:
            return is_right(await self.count())

        await eventually(is_true, what)

    async def until_condition(self, type_: str, wanted: tuple[str, str]) -> None:
        async def is_true() -> bool:
            return await self.condition(type_) == wanted

        await eventually(is_true, f"{type_} to be {wanted}")

    async def until(self, is_right: Callable[[Json], bool], what: str) -> None:
        """Of the resource's status."""

        async def is_true() -> bool:
            return is_right((await self.pool()).get("status", {}))

        await eventually(is_true, what)


SceneOf = Callable[..., Awaitable[Scene]]


@pytest.fixture
async def scene_of(
    control_plane: ControlPlane, admin: KubernetesApi, tmp_path: Path
) -> AsyncIterator[SceneOf]:
    async with AsyncExitStack() as stack:

        async def build(
            *,
            namespace: str | None = None,
            replicas: int = 1,
            cold_start_s: float = 1.0,
            **spec: object,
        ) -> Scene:
            place = namespace or f"test-{next(_numbers)}"
            return await stack.enter_async_context(
                _scene(control_plane, admin, tmp_path, place, replicas, cold_start_s, spec)
            )

        yield build


@asynccontextmanager
async def _scene(
    plane: ControlPlane, api: KubernetesApi, folder: Path, namespace: str,
    replicas: int, cold_start_s: float, spec: Json,
) -> AsyncIterator[Scene]:  # fmt: skip
    await api.create("/api/v1/namespaces", {"metadata": {"name": namespace}})
    kubeconfig = await _service_account(plane, api, namespace)
    fleet = PodFleet(api, namespace)
    scene = Scene(api, plane, namespace, kubeconfig, folder, fleet)
    deployments = paths.collection("apps/v1", namespace, "deployments")
    await api.create(
        deployments, objects.deployment(scene.name, replicas, cold_start_s=cold_start_s)
    )
    await api.create(
        paths.pools(namespace), objects.pool(scene.name, metricsPort=fleet.port, **spec)
    )
    running = asyncio.create_task(fleet.run())
    try:
        yield scene
    finally:
        for process in scene.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        with suppress(ClusterRefused):
            await scene.set_count(0)  # the next test needs the GPUs


async def _service_account(plane: ControlPlane, api: KubernetesApi, namespace: str) -> Path:
    core = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
    with suppress(StaleWrite):  # 409: it exists
        await api.create(core, {"metadata": {"name": "autoscaler"}})
    await api.create(f"{rbac}/roles", objects.role())
    await api.create(f"{rbac}/rolebindings", objects.role_binding(namespace))
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    answer = msgspec.json.decode(await api.create(f"{core}/autoscaler/token", request))
    return plane.kubeconfig(f"autoscaler-{namespace}", answer["status"]["token"])
