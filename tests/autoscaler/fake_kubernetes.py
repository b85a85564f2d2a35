"""A small API server in memory, with the habits that a crash can hurt.

Versions, merge patches that are refused on top of an old one, a scale subresource, a status that is
apart from the spec; controllers that make and delete pods between two ticks, in a ReplicaSet's
order; and a process that may die before or just after any write.  Watches are the real one's
business: pods are told as they are.
"""

import copy
from collections.abc import Mapping

import msgspec

from autoscaler.cluster import Address
from autoscaler.errors import Absent, ClusterRefused, SourceFailed, StaleWrite
from autoscaler.kubernetes import names, paths
from autoscaler.kubernetes.objects import Pod, Pool
from autoscaler.kubernetes.wire import Json
from tests.autoscaler.fake_cluster import Crash

NAMESPACE = "fleet"
BORN = "2027-01-15T08:00:00Z"
POOL_PATH = f"{paths.pools(NAMESPACE)}/chat"
SCALE_PATH = f"{paths.collection('apps/v1', NAMESPACE, 'deployments')}/chat/scale"


class FakeKubernetes:
    def __init__(self, spec: Json, replicas: int, *, num_gpus: int = 64) -> None:
        self.count = replicas
        self.num_gpus = num_gpus
        self.spec = spec
        self.uid = "u"
        self.status: Json = {}
        self.pods: dict[str, Json] = {}
        self.in_flight: dict[str, int] = {}
        self.cordoned: set[str] = set()
        self.cut: list[str] = []
        self.scalers: list[Json] = []
        self.writes: list[str] = []
        self.events: list[Json] = []
        self.crash_before_write: int | None = None
        self.crash_after_write: int | None = None
        self.refuses_reports = False  # a status, but not a note of an order
        self.stale_pods: dict[str, Json] | None = None  # what a watch that hangs goes on telling
        self.num_stale = 0  # of the next writes of the count: only its version was overtaken
        self._versions = {POOL_PATH: 1, SCALE_PATH: 1}
        self._num_made = 0
        self._num_patched = 8  # two digits come after one

    def remake_pool(self) -> None:
        """Deleted, and created again under its name."""
        self.uid += "x"
        self.status = {}
        self._versions[POOL_PATH] += 1

    # What the controllers do between two ticks.

    def turn(self, num_in_flight: int) -> None:
        for pod in self.pods.values():
            self._advance(pod)
        while len(self._live) < self.count:
            self._make()
        for name in sorted(self._live, key=self._deletion_rank)[: len(self._live) - self.count]:
            self.pods[name]["metadata"]["deletionTimestamp"] = BORN
            if self.in_flight.get(name, 0) > 0:
                self.cut.append(name)
        self._spread(num_in_flight)

    def _advance(self, pod: Json) -> None:
        """Gone, placed and started, ready: a tick each."""
        name, conditions = pod["metadata"]["name"], pod["status"]["conditions"]
        if "deletionTimestamp" in pod["metadata"]:
            pod["status"]["phase"] = "Succeeded"
            return
        num_placed = sum(_is(p, "PodScheduled") for p in self.pods.values() if p is not pod)
        if not _is(pod, "PodScheduled"):
            if num_placed < self.num_gpus:
                pod["status"]["podIP"] = name
                conditions[:] = [_condition("PodScheduled", "True"), _condition("Ready", "False")]
        else:
            conditions[:] = [_condition("PodScheduled", "True"), _condition("Ready", "True")]

    def _make(self) -> None:
        name = f"p{self._num_made:03}"
        self._num_made += 1
        no_gpu = {**_condition("PodScheduled", "False"), "reason": "Unschedulable"}
        metadata = {"name": name, "uid": f"uid-{name}", "creationTimestamp": BORN}
        self.pods[name] = {
            "metadata": {**metadata, "annotations": {}},
            "status": {"phase": "Pending", "conditions": [no_gpu]},
        }

    @property
    def _live(self) -> list[str]:
        return [n for n, p in self.pods.items() if "deletionTimestamp" not in p["metadata"]]

    def _deletion_rank(self, name: str) -> tuple[bool, bool, int]:
        """https://kubernetes.io/docs/concepts/workloads/controllers/replicaset/#scaling-a-replicaset"""
        pod = self.pods[name]
        cost = pod["metadata"]["annotations"].get(names.DELETION_COST, "0")
        return _is(pod, "PodScheduled"), _is(pod, "Ready"), int(cost)

    def _spread(self, num_in_flight: int) -> None:
        takers = [n for n in self._live if _is(self.pods[n], "Ready") and n not in self.cordoned]
        for name in self.pods:
            if name not in takers:
                self.in_flight[name] = max(0, self.in_flight.get(name, 0) - 1)
        for i, name in enumerate(takers):
            whole, rest = divmod(num_in_flight, len(takers))
            self.in_flight[name] = whole + (i < rest)

    # The API server.

    async def get(self, path: str, **query: str) -> bytes:
        if path == POOL_PATH:
            return self._pool()
        if path == SCALE_PATH:
            return self._scale()
        if path == paths.api("apps/v1"):
            kinds = [{"name": "deployments", "kind": "Deployment"}]
            return msgspec.json.encode({"resources": kinds})
        if "keda.sh" in path:
            raise Absent(path)
        return msgspec.json.encode({"metadata": {}, "items": self.scalers})

    async def patch(self, path: str, body: Json) -> bytes:
        self._write(f"PATCH {path.rsplit('/namespaces/')[-1]}")
        answer = self._patched(path, body)
        self._written()
        return answer

    async def create(self, path: str, body: Json) -> bytes:
        self._write("POST event")
        self.events.append(body)
        self._written()
        return b"{}"

    def _patched(self, path: str, body: Json) -> bytes:
        if path == SCALE_PATH:
            self._require_version(path, body)
            self.count = body["spec"]["replicas"]
            self._versions[path] += 1
            return self._scale()
        if path == f"{POOL_PATH}/status":
            self._require_version(POOL_PATH, body)
            if self.refuses_reports and "reasons" in body["status"]:
                raise ClusterRefused("500")
            self.status = _merged(self.status, body["status"])
            self._versions[POOL_PATH] += 1
            return self._pool()
        pod = self.pods.get(path.rsplit("/", 1)[-1])
        if pod is None or pod["metadata"]["uid"] != body["metadata"]["uid"]:
            raise Absent(path)
        self._num_patched += 1
        version = {"resourceVersion": str(self._num_patched)}
        pod["metadata"] = {**_merged(pod["metadata"], body["metadata"]), **version}
        return msgspec.json.encode(pod)

    def _require_version(self, path: str, body: Json) -> None:
        if path == SCALE_PATH and self.num_stale > 0:
            self.num_stale -= 1
            self._versions[path] += 1
        if body["metadata"]["resourceVersion"] != str(self._versions[path]):
            raise StaleWrite(path)

    def _pool(self) -> bytes:
        metadata = {"name": "chat", "generation": 1, "uid": self.uid, "namespace": NAMESPACE}
        metadata["resourceVersion"] = str(self._versions[POOL_PATH])
        return msgspec.json.encode({"metadata": metadata, "spec": self.spec, "status": self.status})

    def _scale(self) -> bytes:
        metadata = {"name": "chat", "resourceVersion": str(self._versions[SCALE_PATH])}
        return msgspec.json.encode(
            {
                "metadata": metadata,
                "spec": {"replicas": self.count},
                "status": {"selector": "app=chat"},
            }
        )

    @property
    def pool(self) -> Pool:
        return msgspec.json.decode(self._pool(), type=Pool)

    # The pods, and a line to each.

    async def matching(self, label_selector: str) -> Mapping[str, Pod]:
        assert label_selector == "app=chat"
        told = self.pods if self.stale_pods is None else self.stale_pods
        return {n: msgspec.convert(copy.deepcopy(p), Pod) for n, p in told.items()}

    async def cordon(self, address: Address) -> None:
        self._write(f"cordon {address.host}")
        self.cordoned.add(address.host)
        self._written()

    async def uncordon(self, address: Address) -> None:
        self._write(f"uncordon {address.host}")
        if "deletionTimestamp" in self.pods[address.host]["metadata"]:
            raise SourceFailed("gone")
        self.cordoned.discard(address.host)
        self._written()

    def _write(self, what: str) -> None:
        if self.crash_before_write is not None:
            self.crash_before_write -= 1
            if self.crash_before_write < 0:
                self.crash_before_write = None
                raise Crash
        self.writes.append(what)

    def _written(self) -> None:
        if self.crash_after_write is not None:
            self.crash_after_write -= 1
            if self.crash_after_write < 0:
                self.crash_after_write = None
                raise Crash


def _condition(type_: str, status: str) -> Json:
    return {"type": type_, "status": status, "lastTransitionTime": BORN}


def _is(pod: Json, type_: str) -> bool:
    return any(c["type"] == type_ and c["status"] == "True" for c in pod["status"]["conditions"])


def _merged(before: Json, patch: Json) -> Json:
    """RFC 7386."""
    found = dict(before)
    for key, value in patch.items():
        if value is None:
            found.pop(key, None)
        elif isinstance(value, dict):
            found[key] = _merged(found.get(key, {}), value)
        else:
            found[key] = value
    return found
