"""The autoscaler over a real control plane: its resource, scaling, who leads, what breaks."""

import asyncio
import json
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import msgspec
import pytest
import yaml

from autoscaler.cluster import ClusterView
from autoscaler.errors import ClusterRefused
from autoscaler.kubernetes import paths
from autoscaler.kubernetes.api import KubernetesApi, connected
from autoscaler.kubernetes.cluster import Home, KubernetesCluster
from autoscaler.kubernetes.notebook import Notebook
from autoscaler.kubernetes.objects import Pod
from autoscaler.kubernetes.pod_watches import PodWatches, WatchInputs
from autoscaler.kubernetes.reflector import Collection, Reflector, WatchTimings
from autoscaler.kubernetes.resource import pool_spec
from autoscaler.kubernetes.wire import Json
from autoscaler.pool import Phase
from autoscaler.replica_line import HttpReplicaLine
from pandal.explain import lines, read_cluster
from tests.kubernetes import objects
from tests.kubernetes.conftest import PATIENCE_S, Scene, SceneOf, audited, eventually
from tests.support.control_plane import ControlPlane
from tests.support.muffled_proxy import muffled_proxy

pytestmark = pytest.mark.timeout(300)

VARIANT: Json = objects.pool("x")["spec"]["variants"][0]
POOLS = paths.pools("default")


async def test_defaults_are_filled_in_and_read_as_the_policys_own(admin: KubernetesApi) -> None:
    made = msgspec.json.decode(await admin.create(POOLS, objects.pool("defaults")))
    spec = made["spec"]
    assert (spec["urgency"], spec["ttftSloSeconds"], spec["metricsPort"]) == (0.5, 2, 8000)
    assert spec["variants"][0]["target"]["kind"] == "Deployment"
    assert pool_spec("defaults", spec) == pool_spec("defaults", objects.pool("defaults")["spec"])


@pytest.mark.parametrize(
    "changed",
    [
        {"minReplicas": 9},
        {"minReplicas": 0},
        {"minReplicas": -1},
        {"maxReplicas": "many"},
        {"maxReplicas": None},
        {"urgency": 1.5},
        {"targetUsage": 0},
        {"variants": []},
        {"variants": [VARIANT, VARIANT]},
        {"variants": [{**VARIANT, "tokensPerSecond": 0}]},
        {"variants": [{**VARIANT, "maxReplicas": 2}], "minReplicas": 3},
        {"schedules": [{"cron": "0 8 * * *", "durationSeconds": 5, "minReplicas": 2}]},
        {"schedules": [{"cron": "0 8 * * *", "durationSeconds": 3600, "minReplicas": 20}]},
        {"gateway": {"port": 8080}},
    ],
    ids=str,
)
async def test_what_makes_no_sense_is_refused_before_it_is_stored(
    admin: KubernetesApi, changed: Json
) -> None:
    with pytest.raises(ClusterRefused, match="422 Invalid"):
        await admin.create(POOLS, objects.pool("bad", **changed))


NUM_GPUS = 6


async def test_up_and_down_with_a_load_on_too_few_gpus(scene_of: SceneOf) -> None:
    scene = await scene_of(namespace="fleet", cold_start_s=1.0)
    process = scene.start_autoscaler()
    scene.fleet.rate_per_s = 4.0
    await scene.until(lambda status: status.get("ready") == 1, "the first replica to be seen")

    scene.fleet.rate_per_s = 60.0
    await scene.until(
        lambda status: any(
            v["ready"] == NUM_GPUS and v["unschedulable"] > 0 for v in status.get("variants", ())
        ),
        "all GPUs in use, and what does not fit said",
    )
    assert await scene.condition("Schedulable") == ("False", "Unschedulable")
    pool = await scene.pool()
    told = next(c for c in pool["status"]["conditions"] if c["type"] == "Schedulable")
    assert f"Insufficient {objects.GPU}" in told["message"]
    assert scene.fleet.most_at_once <= 8, "what waits for GPUs is not ordered again"

    scene.fleet.rate_per_s = 3.0
    await scene.until_count(lambda count: count == 1, "down to one")
    assert scene.fleet.cut == []
    assert any(word.startswith("PUT") for word in scene.fleet.cordons)
    await scene.until_condition("Acting", ("True", "Acting"))

    process.terminate()
    assert process.wait() == 0
    await _assert_resigned_and_told(scene)
    _assert_rules_are_what_is_used(scene)


async def _assert_resigned_and_told(scene: Scene) -> None:
    lease = await scene.get(f"{paths.leases(scene.namespace)}/pandal-autoscaler")
    assert lease["spec"]["holderIdentity"] == ""
    events = (await scene.get(paths.events(scene.namespace)))["items"]
    told = {e["reason"] for e in events if e["regarding"]["kind"] == "ReplicaPool"}
    assert {"ScaledUp", "ScaledDown"} <= told
    deployment = await scene.get(scene.deployment_path)
    writers = [
        (f["manager"], f.get("subresource")) for f in deployment["metadata"]["managedFields"]
    ]
    assert ("pandal-autoscaler", "scale") in writers, "whoever else writes it is told of whom"


def _assert_rules_are_what_is_used(scene: Scene) -> None:
    """Every permission was needed, and nothing was denied."""
    used, denied = set(), []
    for entry in audited(scene.plane):
        if "objectRef" not in entry or "resource" not in entry["objectRef"]:
            continue
        if not entry["user"]["username"].startswith("system:serviceaccount:fleet:"):
            continue
        reference = entry["objectRef"]
        resource = "/".join(filter(None, (reference["resource"], reference.get("subresource"))))
        used.add((reference.get("apiGroup", ""), resource, entry["verb"]))
        if entry["annotations"]["authorization.k8s.io/decision"] != "allow":
            denied.append(entry["requestURI"])
    allowed = {
        (group, resource, verb)
        for rule in yaml.safe_load(objects.RULES.read_text())
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert denied == []
    assert used == allowed


async def a_holder(scene: Scene, *, other_than: str = "") -> str:
    """Of the lease: on a slow machine one may lose it, and nobody hold it for a moment."""
    found: list[str] = []

    async def is_held() -> bool:
        leases = await scene.get(paths.leases(scene.namespace))
        holders = (lease["spec"].get("holderIdentity", "") for lease in leases["items"])
        found[:] = [holder for holder in holders if holder not in ("", other_than)]
        return found != []

    await eventually(is_held, f"somebody to lead, other than {other_than or 'nobody'}")
    return found[0]


async def is_agreed(scene: Scene) -> bool:
    """Who looks back at as much demand as before would undo the drain when it leads, and may."""
    decisions = [
        [line for line in map(json.loads, scene.log(number).splitlines()) if "num_wanted" in line]
        for number in range(len(scene.processes))
    ]
    ordered = (await scene.pool())["status"]["ordered"]
    return all(told and told[-1]["num_wanted"] < ordered for told in decisions)


async def test_when_the_leader_dies_in_a_drain_the_next_one_finishes_it(scene_of: SceneOf) -> None:
    scene = await scene_of(cold_start_s=1.0, drainDeadlineSeconds=600)
    scene.start_autoscaler()
    scene.start_autoscaler()
    await scene.until(lambda status: status.get("ready") == 1, "a leader to look")
    scene.fleet.rate_per_s = 40.0
    await scene.until(lambda status: status.get("ready", 0) >= 4, "more to be ready")
    scene.fleet.stream(1)
    scene.fleet.rate_per_s = 3.0
    await scene.until(
        lambda status: any(v["draining"] > 0 for v in status.get("variants", ())), "a drain"
    )
    await eventually(lambda: is_agreed(scene), "both to want fewer than there are")
    first = await a_holder(scene)
    scene.processes[int(first.removeprefix("autoscaler-").partition("_")[0])].kill()
    second = await a_holder(scene, other_than=first)
    await scene.until(
        lambda status: status.get("decidedBy", "").startswith(second), "the other one to write"
    )
    is_cordoned = [engine.is_cordoned for engine in scene.fleet.engines.values()]
    assert any(is_cordoned), "what was begun is not forgotten"
    assert scene.fleet.cut == []
    scene.fleet.stream(0)
    await scene.until_count(lambda count: count == 1, "the second leader to finish")
    assert scene.fleet.cut == []
    codes = [reason["code"] for reason in (await scene.pool())["status"]["reasons"]]
    assert "manual" not in codes, "the predecessor's counts are no person's"


async def test_a_person_is_respected_within_the_bounds_and_corrected_outside(
    scene_of: SceneOf,
) -> None:
    scene = await scene_of(maxReplicas=4, respectManualSeconds=10)  # it must be seen meanwhile
    scene.start_autoscaler()
    scene.fleet.rate_per_s = 3.0
    await scene.until(lambda status: status.get("reason") == "steady", "a steady pool")
    await scene.set_count(3)
    await scene.until(
        lambda status: (
            status.get("reason") == "manual" and [v["ordered"] for v in status["variants"]] == [3]
        ),
        "the person's count to be kept",
    )
    await scene.until_count(lambda count: count == 1, "the person's time to be over")
    await scene.set_count(6)
    await scene.until_count(lambda count: count <= 4, "what is above the ceiling to be corrected")


async def test_a_dry_run_says_and_does_not(scene_of: SceneOf) -> None:
    scene = await scene_of(dryRun=True)
    scene.start_autoscaler()
    scene.fleet.rate_per_s = 40.0
    await scene.until(lambda status: bool(status.get("planned")), "something planned")
    config = scene.plane.kubeconfig("admin")
    status = await asyncio.to_thread(read_cluster, scene.namespace, scene.name, config)
    assert any(line.startswith("  planned: h200: count 1 -> ") for line in lines("chat", status))
    assert await scene.condition("Acting") == ("False", "DryRun")
    assert await scene.count() == 1
    assert scene.fleet.cordons == []


async def test_an_api_server_that_goes_and_comes_back_is_found_again(scene_of: SceneOf) -> None:
    scene = await scene_of()
    process = scene.start_autoscaler()
    scene.fleet.rate_per_s = 3.0
    await scene.until(lambda status: status.get("ready") == 1, "a leader to look")
    scene.plane.kill_api_server()
    scene.fleet.rate_per_s = 40.0

    async def is_refused() -> bool:
        return "lease not renewed" in scene.log(0)

    await eventually(is_refused, "the autoscaler to notice")
    scene.plane.start_api_server()
    await scene.until_count(lambda count: count > 1, "the same process to scale again")
    assert process.poll() is None
    assert scene.fleet.cut == []


POD: Json = {
    "metadata": {"labels": {"app": "watched"}},
    "spec": {"containers": [{"name": "c", "image": "i"}]},
}


@dataclass
class CountingLists:
    """The same API, and how often a collection was listed."""

    api: KubernetesApi
    num_lists: int = 0

    async def get(self, path: str, **query: str) -> bytes:
        answer = await self.api.get(path, **query)
        self.num_lists += 1
        return answer

    def lines(self, path: str, *, silence_s: float, **query: str) -> AsyncGenerator[bytes, None]:
        return self.api.lines(path, silence_s=silence_s, **query)


@asynccontextmanager
async def watched(api: CountingLists) -> AsyncIterator[Reflector[Pod]]:
    """Pods of the default namespace, over a watch that takes a second's silence for death."""
    reflector = Reflector(
        api,
        Collection(paths.pods("default"), Pod, "app=watched"),
        WatchTimings(silence_s=1.5, first_backoff_s=0.2),
        monotonic_s=time.monotonic,
        random=random.random,
    )
    running = asyncio.create_task(reflector.run(asyncio.sleep))
    try:
        await reflector.listed(20.0)
        yield reflector
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


async def add_pod(api: KubernetesApi, name: str) -> None:
    pod = {**POD, "metadata": {**POD["metadata"], "name": name}}
    await api.create(paths.pods("default"), pod)


async def until_seen(reflector: Reflector[Pod], name: str) -> None:
    async def is_seen() -> bool:
        with suppress(ClusterRefused):
            return name in reflector.items
        return False

    await eventually(is_seen, f"{name} to be seen")


async def test_a_watch_that_falls_silent_is_begun_anew_where_it_was(
    control_plane: ControlPlane, admin: KubernetesApi
) -> None:
    async with muffled_proxy(control_plane.port) as proxy:
        way_round = control_plane.kubeconfig("proxied", server=f"https://127.0.0.1:{proxy.port}")
        async with connected(way_round, request_timeout_s=5.0) as api:
            counted = CountingLists(api)
            async with watched(counted) as reflector:
                await add_pod(admin, "before")
                await until_seen(reflector, "before")
                num_before = proxy.num_connections
                proxy.muffle()
                await add_pod(admin, "after")
                await until_seen(reflector, "after")
                assert proxy.num_connections > num_before
                assert counted.num_lists == 1


async def test_an_api_server_begun_anew_has_forgotten_and_is_listed_again(
    control_plane: ControlPlane, admin: KubernetesApi
) -> None:
    counted = CountingLists(admin)
    async with watched(counted) as reflector:
        control_plane.kill_api_server()
        control_plane.forget_history()
        control_plane.start_api_server()
        await add_pod(admin, "later")
        await until_seen(reflector, "later")
        assert counted.num_lists == 2, "410: its history begins after what was seen"


class NobodyLeads:
    token = "nobody/0"

    def may_act(self) -> bool:
        return False


async def looked_at(scene: Scene) -> ClusterView:
    """What the first look sees that is answered; the watches that it begins end with it."""
    inputs = WatchInputs(
        WatchTimings(), time.monotonic, random.random, asyncio.sleep, first_list_s=PATIENCE_S
    )
    leadership = NobodyLeads()
    spec = pool_spec(scene.name, (await scene.pool())["spec"])
    notebook = Notebook(scene.api, f"{paths.pools(scene.namespace)}/{scene.name}", leadership)
    views: list[ClusterView] = []

    async with asyncio.TaskGroup() as group:
        watches = PodWatches(scene.api, scene.namespace, inputs, group)
        line = HttpReplicaLine(1.0)
        home = Home(scene.api, scene.namespace, leadership, watches, line, list, time.time)
        cluster = KubernetesCluster(home, spec, notebook)

        async def is_answered() -> bool:
            with suppress(ClusterRefused):  # 429: a kind's first list of an API server begun anew
                views.append(await cluster.observe())
            return views != []

        await eventually(is_answered, "a look to be answered")
        for task in asyncio.all_tasks():
            if task.get_name().startswith("watch pods"):
                task.cancel()
    return views[0]


async def test_a_thousand_pods_are_one_look(scene_of: SceneOf) -> None:
    scene = await scene_of(replicas=0, maxReplicas=1000)
    scene.fleet.label_selector = "app=none"  # or it lists a thousand pods five times a second
    limit = asyncio.Semaphore(32)

    async def add(number: int) -> None:
        async with limit:
            pod = objects.unplaced_pod(f"many-{number}", scene.name)
            await scene.api.create(paths.pods(scene.namespace), pod)

    await asyncio.gather(*(add(number) for number in range(1000)))
    view = await looked_at(scene)
    assert len(view.variants[0].replicas) == 1000
    assert view.variants[0].count(Phase.STARTING) == 1000
