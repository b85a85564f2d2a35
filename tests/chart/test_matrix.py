"""Two hundred combinations of values: each renders, and Kubernetes' schemas take every object."""

import itertools
import json
import re
import shutil
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from autoscaler.kubernetes.resource import pool_spec
from tests.chart import manifests
from tests.chart.pairwise import combinations
from tests.support.helm import CHART, KUBE_VERSION, Helm, objects_of

validate = pytest.importorskip("kubernetes_validate.utils", reason="a package of the dev extra")
from jsonschema import Draft202012Validator, ValidationError  # noqa: E402  # comes with it
from referencing import Registry, Resource  # noqa: E402  # as does this

pytestmark = pytest.mark.timeout(300)
NUM_COMBINATIONS, NUM_IN_ONE = 200, 25
OLDEST = "1.30"
GOLDEN = sorted(Path(__file__).with_name("golden").glob("*.yaml"))

KAFKA = {"transport": "kafka", "kafka": {"bootstrap": "k:9092"}, "spool": {"kind": "emptyDir"}}
TLS = {"bootstrap": "k:9093", "security": "ssl", "tls": {"certificateSecret": "c"}}
SHARED = {"transport": "spool", "spool": {"accessMode": "ReadWriteMany"}}
CPU = {"name": "cpu", "model": "m"}
GPU = {"modelPath": "org/m", "gpu": {"type": "H100", "count": 2}, "precision": "fp8"}
VLLM = {"name": "gpu", "model": "org/m", **GPU}
SGLANG = {**VLLM, "name": "sg", "engine": "sglang", "kvPrecision": "fp8"}
FILE = {"url": "https://h/m.gguf", "path": "m.gguf", "sizeBytes": 1}
SCALED = {"enabled": True, "maxReplicas": 3}
OPTIONS: dict[str, list[Any]] = {
    "usage": [{}, SHARED, KAFKA, {**KAFKA, "kafka": TLS}],
    "pools": [[], [CPU], [CPU, VLLM], [SGLANG]],
    "pool.replicas": [1, 4],
    "pool.autoscaling": [{}, SCALED, {**SCALED, "spec": {"urgency": 1, "dryRun": True}}],
    "pool.modelVolume": [{}, {"kind": "claim", "accessMode": "ReadWriteMany", "storageClass": "s"}],
    "pool.downloads": [[], [FILE]],
    "pool.hubToken": [{}, {"existingSecret": "hub"}],
    "pool.rollout": ["surge", "replace"],
    "gateway.replicas": [0, 1],
    "gateway.ingress": [
        {},
        {"enabled": True},
        {"enabled": True, "hosts": ["a.b"], "className": "nginx"},
    ],
    "gateway.httpRoute": [{}, {"enabled": True, "parentRefs": [{"name": "g"}]}],
    "gateway.service": [{}, {"type": "NodePort", "annotations": {"a": "b"}}],
    "gateway.policies": [{}, {"existingConfigMap": "tenants"}, {"url": {"existingSecret": "p"}}],
    "gateway.redisCa": [{}, {"existingSecret": "ca"}],
    "gateway.redisCertificateSecret": ["", "client"],
    "gateway.drain": [{}, {"preStopS": 0, "timeoutS": 0}],
    "gateway.affinity": [{}, {"nodeAffinity": {}}],
    "gateway.topologySpread": [True, False],
    "gateway.serviceAccount": [{}, {"create": False}, {"annotations": {"a": "b"}}],
    "billing.enabled": [True, False],
    "billing.ledger": [{}, {"url": {"existingSecret": "b"}}],
    "billing.keepsCounters": [True, False],
    "billing.terms": [{}, {"document": {"tenants": {}}}, {"existingConfigMap": "t"}],
    "autoscaler.replicas": [1, 2],
    "monitoring.scraping": [{}, {"enabled": True, "labels": {"r": "p"}}],
    "monitoring.alerts": [{}, {"enabled": True, "runbooks": "https://r"}],
    "networkPolicy": [{}, {"enabled": False}, {"clients": [], "scrapers": []}],
    "commonLabels": [{}, {"team": "a"}],
    "streamTest": [{}, {"enabled": False}, {"apiKey": {"existingSecret": "k"}}],
}


def values_of(choice: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path, value in choice.items():
        *groups, name = path.replace("pool.", "poolDefaults.").split(".")
        place = found
        for group in groups:
            place = place.setdefault(group, {})
        place[name] = value
    return found


@pytest.fixture(scope="module")
def umbrellas(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Charts that hold ours many times over: a process of Helm for each would take a minute."""
    chosen = combinations(OPTIONS, NUM_COMBINATIONS, seed=13)
    assert len(chosen) >= NUM_COMBINATIONS
    return [
        umbrella(tmp_path_factory.mktemp("umbrella"), chosen[start : start + NUM_IN_ONE])
        for start in range(0, len(chosen), NUM_IN_ONE)
    ]


def umbrella(folder: Path, chosen: list[dict[str, Any]]) -> Path:
    """All named alike, so that equal objects are equal."""
    shutil.copytree(CHART, folder / "charts" / "pandal")
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["version"]
    aliases = [f"c{number}" for number in range(len(chosen))]
    ours = [{"name": "pandal", "version": version, "alias": alias} for alias in aliases]
    chart = {"apiVersion": "v2", "name": "umbrella", "version": "1.0.0", "dependencies": ours}
    (folder / "Chart.yaml").write_text(yaml.safe_dump(chart))
    values = {
        alias: {**values_of(choice), "nameOverride": "pandal"}
        for alias, choice in zip(aliases, chosen, strict=True)
    }
    (folder / "values.yaml").write_text(yaml.safe_dump(values))
    return folder


def rendered(helm: Helm, folder: Path) -> list[list[Any]]:
    """Objects of each of the charts in it."""
    text = helm.run("template", "r", str(folder), "-n", "ns", "--kube-version", KUBE_VERSION).stdout
    parts: dict[str, list[str]] = defaultdict(list)
    alias = ""
    for document in text.split("\n---\n"):
        source = re.search(r"# Source: umbrella/charts/(\w+)/", document)
        alias = alias if source is None else source[1]  # Helm 3 says it once of a file's
        parts[alias].append(document)
    return [objects_of("\n---\n".join(documents)) for _, documents in sorted(parts.items())]


@pytest.fixture(scope="module")
def charts(helm4: Helm, umbrellas: list[Path]) -> list[list[Any]]:
    """The objects of each combination."""
    return [objects for folder in umbrellas for objects in rendered(helm4, folder)]


def test_every_combination_is_taken(charts: list[list[Any]]) -> None:
    assert len(charts) >= NUM_COMBINATIONS
    for objects in charts:
        keys = [(o["kind"], o["metadata"]["name"]) for o in objects]
        assert len(set(keys)) == len(keys)
    distinct = {json.dumps(o, sort_keys=True): o for o in itertools.chain(*charts)}
    check_schemas(distinct.values())


def test_both_helms_make_the_same(
    helm3: Helm, umbrellas: list[Path], charts: list[list[Any]]
) -> None:
    """Of the first ones, which are those in which all pairs meet."""
    ours, others = charts[:NUM_IN_ONE], rendered(helm3, umbrellas[0])
    assert list(map(manifests.keyed, ours)) == list(map(manifests.keyed, others))


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda path: path.stem)
def test_the_oldest_kubernetes_takes_every_scenario(golden: Path) -> None:
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["kubeVersion"]
    assert version == f">={OLDEST}.0-0"
    check_schemas(objects_of(golden.read_text()), OLDEST)


def check_schemas(objects: Iterable[Any], version: str = KUBE_VERSION) -> None:
    """Strictly: a key that Kubernetes does not know is refused."""
    validators: dict[tuple[str, str], Any] = {}
    for found in objects:
        group, kind = found["apiVersion"], found["kind"]
        if group.startswith("pandal.dev/"):
            pool_spec(found["metadata"]["name"], found["spec"])
        elif not group.startswith(("monitoring.coreos.com/", "gateway.networking.k8s.io/")):
            if (group, kind) not in validators:
                validators[group, kind] = strict_validator(group, kind, version)
            validators[group, kind].validate(found)


def strict_validator(api_version: str, kind: str, kubernetes: str) -> Any:
    """As kubernetes_validate does it, but once for each kind: it reads all schemas each time."""
    group, _, version = api_version.rpartition("/")
    release = next(v for v in validate.all_versions() if v.startswith(f"{kubernetes}."))
    folder = f"kubernetes-json-schema/v{release}-local-strict"
    name = "-".join(filter(None, (kind.lower(), group.partition(".")[0], version)))
    schema = validate.schema_contents(f"{folder}/{name}.json", release)
    definitions = validate.schema_contents(f"{folder}/_definitions.json", release)
    registry = Resource.from_contents(schema) @ Registry()
    registry = Resource.from_contents(definitions) @ registry
    return Draft202012Validator(schema, registry=registry)


def test_a_misspelt_key_is_found() -> None:
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}}
    check_schemas([service])
    with pytest.raises(ValidationError, match="'portz' was unexpected"):
        check_schemas([{**service, "spec": {"portz": []}}])


def test_every_pair_of_choices_meets() -> None:
    small = {"a": [0, 1, 2], "b": [0, 1], "c": [0, 1, 2, 3]}
    found = combinations(small, 0, seed=1)
    for one, other in itertools.combinations(small, 2):
        met = {(choice[one], choice[other]) for choice in found}
        assert met == set(itertools.product(small[one], small[other]))
