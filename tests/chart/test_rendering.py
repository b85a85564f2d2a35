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


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"gatway": {}}, "gatway"),
        ({"gateway": {"replica": 2}}, "replica"),
        ({"gateway": {"settings": {"maxWating": 2}}}, "maxWating"),
        ({"gateway": {"settings": {"maxWaiting": 0}}}, "maxWaiting"),
        ({"pools": [{"name": "a", "model": "m", "gpus": 1}]}, "gpus"),
        ({"pools": [{"name": "a"}]}, "model"),
        ({"pools": [{"name": "A b", "model": "m"}]}, "name"),
        ({"usage": {"transport": "pigeon"}}, "transport"),
        ({"fullnameOverride": "a.b"}, "fullnameOverride"),
        ({"monitoring": {"alerts": {"objectives": {"availability": 1.5}}}}, "availability"),
    ],
    ids=str,
)
def test_what_the_schema_refuses_is_named(
    helm3: Helm, helm4: Helm, written: Written, values: Any, said: str
) -> None:
    for helm in (helm3, helm4):
        assert said in helm.refusal(written(values))


CPU_POOL = {"name": "a", "model": "m"}
VLLM_POOL = {**CPU_POOL, "gpu": {"count": 1}}
HUB_POOL = {**VLLM_POOL, "modelPath": "hub/m"}
SCALED_POOL = {**CPU_POOL, "autoscaling": {"enabled": True}}
FILE = {"url": "http://h/m.bin", "path": "m.bin", "sizeBytes": 1}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"gateway": {"replicas": 2}}, "usage.spool.accessMode"),
        ({"usage": {"spool": {"kind": "emptyDir"}}}, "usage.spool.kind"),
        ({"usage": {"transport": "kafka"}}, "usage.kafka.bootstrap"),
        ({"billing": {"replicas": 2}}, "billing.replicas"),
        ({"pools": [CPU_POOL, CPU_POOL]}, "stands twice"),
        ({"pools": [{**CPU_POOL, "engine": "pandal", "gpu": {"count": 2}}]}, "or one GPU"),
        (
            {"pools": [{**CPU_POOL, "replicas": 2, "modelVolume": {"kind": "claim"}}]},
            "modelVolume.accessMode",
        ),
        (
            {"pools": [{**CPU_POOL, "autoscaling": {"enabled": True, "minReplicas": 5}}]},
            "above maxReplicas",
        ),
        (
            {
                "pools": [
                    {**CPU_POOL, "autoscaling": {"enabled": True, "minReplicas": 0}},
                    {**CPU_POOL, "name": "b"},
                ]
            },
            "a gateway of its own",
        ),
        ({"admin": {"enabled": True}}, "admin.enabled"),
        ({"usage": {"spool": {"accessMode": "ReadWriteOncePod"}}}, "usage.spool.accessMode"),
        ({"pools": [{**CPU_POOL, "modelVolume": {"kind": "claim"}}]}, "rollout replace"),
        ({"pools": [{**CPU_POOL, "journalVolume": {"kind": "claim"}}]}, "rollout replace"),
        ({"billing": {"ledger": {"volume": {"kind": "emptyDir"}}}}, "billing.ledger.volume.kind"),
        ({"pools": [VLLM_POOL]}, "an empty volume"),
        ({"pools": [{**VLLM_POOL, "downloads": [FILE]}]}, "m.bin is not below m/"),
        ({"pools": [{**CPU_POOL, "downloads": [{**FILE, "usesHubToken": True}]}]}, "in the clear"),
        ({"pools": [{**HUB_POOL, "precision": "int4"}]}, "extraArgs: [--quantization"),
        ({"pools": [{**HUB_POOL, "kvPrecision": "int8"}]}, "[--kv-cache-dtype"),
        ({"pools": [SCALED_POOL], "autoscaler": {"enabled": False}}, "nobody would scale it"),
        ({"gateway": {"quotaUrl": {"existingSecret": ""}}}, "gateway.quotaUrl"),
        ({"monitoring": {"alerts": {"enabled": True}}}, "monitoring.alerts.runbooks"),
    ],
    ids=str,
)
def test_what_contradicts_itself_is_refused(
    helm4: Helm, written: Written, values: Any, said: str
) -> None:
    assert said in helm4.refusal(written(values))


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
