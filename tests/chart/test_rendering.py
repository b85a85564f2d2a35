"""What Helm makes of the chart: both versions alike, golden, or refused where it makes no sense."""

import difflib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.chart import manifests
from tests.chart.conftest import Written
from tests.support.helm import CHART, Helm

CI = sorted((CHART / "ci").glob("*-values.yaml"))
GOLDEN = Path(__file__).with_name("golden")
pytestmark = pytest.mark.timeout(300)


def scenario(path: Path) -> str:
    return path.name.removesuffix("-values.yaml")


@pytest.mark.parametrize("values", CI, ids=scenario)
def test_lint_finds_nothing(helm3: Helm, helm4: Helm, values: Path) -> None:
    for helm in (helm3, helm4):
        helm.run("lint", "--strict", str(CHART), "-f", str(values))


@pytest.mark.parametrize("values", CI, ids=scenario)
def test_both_helms_render_what_is_golden(helm3: Helm, helm4: Helm, values: Path) -> None:
    """``python -m tests.chart.goldens`` writes them anew."""
    found = helm4.template([values])
    assert manifests.keyed(helm3.template([values])) == manifests.keyed(found)
    golden = (GOLDEN / f"{scenario(values)}.yaml").read_text()
    changes = "\n".join(
        difflib.unified_diff(golden.splitlines(), golden_of(found).splitlines(), lineterm="", n=2)
    )
    assert not changes, changes


def golden_of(objects: list[dict[str, Any]]) -> str:
    by_name = manifests.keyed(objects)
    return yaml.safe_dump_all((by_name[name] for name in sorted(by_name)), width=120)


UNKNOWN = {
    "gatway": {},
    "gateway": {
        "replica": 2,
        "settings": {"maxWating": 2, "maxWaiting": 0},
        "policies": {"document": {"tenants": "acme"}},
    },
    "pools": [{"name": "a", "model": "m", "gpus": 1}, {"name": "b"}, {"name": "A b", "model": "m"}],
    "usage": {"transport": "pigeon"},
    "fullnameOverride": "a.b",
    "monitoring": {"alerts": {"objectives": {"availability": 1.5}}},
}
REFUSED = [
    ("", "gatway"),
    ("gateway", "replica"),
    ("gateway.settings", "maxWating"),
    ("gateway.settings.maxWaiting", ""),
    ("gateway.policies.document.tenants", "array"),
    ("pools.0", "gpus"),
    ("pools.1", "model"),
    ("pools.2.name", "pattern"),
    ("usage.transport", "spool"),
    ("fullnameOverride", "pattern"),
    ("monitoring.alerts.objectives.availability", ""),
]


def test_what_the_schema_refuses_is_named(helm3: Helm, helm4: Helm, written: Written) -> None:
    """With its path, and all of it at once."""
    for helm in (helm3, helm4):
        told = [fault_of(line) for line in helm.refusal(written(UNKNOWN)).splitlines()]
        for place, word in REFUSED:
            assert any(at == place and word in words for at, words in told), (place, told)


def fault_of(line: str) -> tuple[str, str]:
    """Place and words; the two Helms spell a path in two ways."""
    place, _, words = line.strip(" -").removeprefix("at ").partition(": ")
    return place.strip("'/").replace("/", ".").replace("(root)", ""), words


CPU_POOL = {"name": "a", "model": "m"}
VLLM_POOL = {**CPU_POOL, "gpu": {"count": 1}}
HUB_POOL = {**VLLM_POOL, "modelPath": "hub/m"}
SCALED = {"enabled": True}
FILE = {"url": "http://h/m.bin", "path": "m.bin", "sizeBytes": 1}
CLAIM = {"kind": "claim"}

# Values that contradict themselves several times over, and how each time is told.
CONTRADICTIONS: list[tuple[Any, list[str]]] = [
    (
        {
            "gateway": {"replicas": 2, "quotaUrl": {"existingSecret": ""}},
            "usage": {"spool": {"accessMode": "ReadWriteOncePod"}},
            "billing": {"replicas": 2, "ledger": {"volume": {"kind": "emptyDir"}}},
            "admin": {"enabled": True},
            "monitoring": {"alerts": {"enabled": True}},
        },
        [
            "usage.spool.accessMode: ReadWriteOncePod lets pods of one node in, and there may be 2",
            "usage.spool.accessMode: ReadWriteOncePod keeps out billing",
            "billing.replicas: more than one",
            "billing.ledger.volume.kind: an emptyDir",
            "admin.enabled: needs gateway.policies.url",
            "gateway.quotaUrl: names no Secret",
            "monitoring.alerts.runbooks: where",
        ],
    ),
    ({"usage": {"spool": {"kind": "emptyDir"}}}, ["usage.spool.kind: billing cannot read"]),
    ({"usage": {"transport": "kafka"}}, ["usage.kafka.bootstrap: where"]),
    (
        {"pools": [{**CPU_POOL, "autoscaling": SCALED}], "autoscaler": {"enabled": False}},
        ["pools: a: autoscaling.enabled: nobody would scale it"],
    ),
    (
        {
            "pools": [
                CPU_POOL,
                CPU_POOL,
                {**CPU_POOL, "name": "gpus", "engine": "pandal", "gpu": {"count": 2}},
                {
                    **CPU_POOL,
                    "name": "two",
                    "replicas": 2,
                    "rollout": "replace",
                    "modelVolume": CLAIM,
                },
                {**CPU_POOL, "name": "models", "modelVolume": CLAIM},
                {**CPU_POOL, "name": "journal", "journalVolume": CLAIM},
                {**CPU_POOL, "name": "five", "autoscaling": {**SCALED, "minReplicas": 5}},
                {**CPU_POOL, "name": "zero", "autoscaling": {**SCALED, "minReplicas": 0}},
                {**VLLM_POOL, "name": "nowhere"},
                {**VLLM_POOL, "name": "beside", "downloads": [FILE]},
                {**CPU_POOL, "name": "clear", "downloads": [{**FILE, "usesHubToken": True}]},
                {**HUB_POOL, "name": "int4", "precision": "int4"},
                {**HUB_POOL, "name": "kv", "kvPrecision": "int8"},
            ]
        },
        [
            "pools: a stands twice",
            "pools: gpus: engine pandal runs on CPUs or one GPU",
            "pools: two: modelVolume.accessMode: ReadWriteOnce lets pods of one node in",
            "pools: models: modelVolume.accessMode: ReadWriteOnce keeps out the pod",
            "pools: journal: journalVolume.accessMode: ReadWriteOnce keeps out the pod",
            "pools: five: autoscaling.minReplicas is above maxReplicas",
            "pools: zero: autoscaling.minReplicas: 0 needs a gateway of its own",
            "pools: nowhere: vllm would look for the model in an empty volume",
            "pools: beside: downloads: m.bin is not below m/",
            "pools: clear: downloads: m.bin: usesHubToken would send a secret in the clear",
            "pools: int4: precision: int4 is the format of a model's own files: "
            "name it to vllm by extraArgs: [--quantization",
            "pools: kv: kvPrecision: int8 has no name that vllm knows, "
            "unless extraArgs says one: [--kv-cache-dtype",
        ],
    ),
]


@pytest.mark.parametrize(
    ("values", "faults"), CONTRADICTIONS, ids=["release", "spool", "kafka", "autoscaler", "pools"]
)
def test_what_contradicts_itself_is_refused_with_all_of_it(
    helm4: Helm, written: Written, values: Any, faults: list[str]
) -> None:
    said = helm4.refusal(written(values))
    told = said[said.index("refusals.yaml") :].partition("\n\n")[0].splitlines()
    assert len(told) == len(faults), said
    for line, fault in zip(told, faults, strict=True):
        assert fault in line


def test_one_pod_after_the_other_may_share_a_volume_of_one_node(
    helm4: Helm, written: Written
) -> None:
    pool = {**CPU_POOL, "modelVolume": {"kind": "claim"}, "rollout": "replace"}
    assert helm4.template(written({"pools": [pool]}))


def test_a_format_that_is_named_to_the_engine_is_taken(helm4: Helm, written: Written) -> None:
    pool = {**HUB_POOL, "precision": "int4", "extraArgs": ["--quantization=awq"]}
    assert helm4.template(written({"pools": [pool]}))


def notes(helm: Helm, values: list[Path]) -> str:
    files = [argument for path in values for argument in ("-f", str(path))]
    arguments = ("install", "r", str(CHART), "-n", "ns", "--dry-run=client", *files)
    return helm.run(*arguments).stdout.partition("NOTES:")[2]


def test_notes_name_every_secret_as_a_command_that_ends(helm4: Helm, written: Written) -> None:
    secret = {"existingSecret": "other"}
    said = notes(helm4, written({"billing": {"ledger": {"url": secret}}}))
    assert said.count("Nobody may call it yet") == 1
    assert (
        "create secret generic pandal \\\n"
        '    --from-literal=key-pepper="$PEPPER" \\\n'
        "    --from-literal=quota-url=redis://user:password@host:6379\n" in said
    )
    assert (
        "create secret generic other \\\n"
        "    --from-literal=ledger-url=postgresql://user:password@host/database\n" in said
    )
    stored = written({"gateway": {"policies": {"url": secret}}})
    assert "Nobody may call it yet" not in notes(helm4, stored), "the store knows the tenants"
