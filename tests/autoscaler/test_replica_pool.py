"""The resource: generated from the dataclasses, and read back into them."""

from dataclasses import fields
from pathlib import Path

import pytest
import yaml

from autoscaler.errors import BadPolicy
from autoscaler.kubernetes.definition import SPEC_RULES, as_yaml, definition
from autoscaler.kubernetes.resource import NOT_IN_SPEC, GatewaySource, PoolSpec, Target, pool_spec
from autoscaler.kubernetes.wire import Json, to_wire, wire_name
from autoscaler.policy import PoolPolicy, Variant
from autoscaler.schedule import Schedule

CHART_COPY = Path(__file__).parents[2] / "helm" / "pandal" / "crds" / "replicapools.yaml"

VARIANT: Json = {
    "name": "h200", "target": {"name": "chat-h200"}, "maxReplicas": 8, "slots": 64,
    "tokensPerSecond": 2400.0, "costUsdPerHour": 3, "coldStartSeconds": 240,
}  # fmt: skip
SPEC: Json = {
    "variants": [VARIANT],
    "minReplicas": 0,
    "maxReplicas": 8,
    "schedules": [
        {
            "cron": "0 8 * * 1-5", "durationSeconds": 3600, "minReplicas": 4,
            "timeZone": "Europe/Paris",
        }
    ],
    "ttftSloSeconds": 1.5,
    "gateway": {"labelSelector": "app=gateway"},
    "dryRun": True,
}  # fmt: skip


def test_the_charts_copy_is_what_the_program_prints() -> None:
    assert CHART_COPY.read_text() == as_yaml(), (
        "python -m autoscaler.kubernetes.definition > helm/pandal/crds/replicapools.yaml"
    )


def test_a_resource_becomes_a_policy() -> None:
    spec = pool_spec("chat", SPEC)
    assert spec.name == "chat"
    assert spec.is_told_by_gateway
    assert spec.gateway == GatewaySource("app=gateway")
    assert spec.variants[0].target == Target("chat-h200")
    assert (spec.variants[0].num_slots, spec.variants[0].cold_start_s) == (64, 240.0)
    assert spec.schedules == (Schedule("0 8 * * 1-5", 3600.0, 4, "Europe/Paris"),)
    assert (spec.ttft_slo_s, spec.is_dry_run, spec.up_window_s) == (1.5, True, 20.0)


def test_what_is_written_reads_as_the_same() -> None:
    spec = pool_spec("chat", SPEC)
    wire = to_wire(spec)
    for name in NOT_IN_SPEC:
        del wire[wire_name(name)]
    assert pool_spec("chat", wire) == spec


def test_every_figure_of_a_policy_is_in_the_schema_with_its_default() -> None:
    schema = definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    variant = schema["properties"]["variants"]["items"]
    for cls, found in ((PoolPolicy, schema), (Variant, variant)):
        for field in fields(cls):
            if field.name in NOT_IN_SPEC and cls is PoolPolicy:
                continue
            told = found["properties"][wire_name(field.name)]
            assert told["description"]
            if isinstance(field.default, int | float):
                assert told["default"] == field.default
    assert {f.name for f in fields(PoolSpec)} - NOT_IN_SPEC <= SPEC_RULES.keys()
    assert schema["required"] == ["variants", "maxReplicas"]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"minReplicas": 9}, "min_replicas <= max_replicas"),
        ({"gateway": None}, "no engine would see the request"),
        ({"variants": [VARIANT, {**VARIANT, "name": "h100"}]}, "a target of its own"),
        ({"variants": "many"}, "an object expected"),
        ({"maxReplicas": None}, "max_replicas"),
        ({"schedules": [{"cron": "every day", "durationSeconds": 60, "minReplicas": 1}]}, "fields"),
    ],
    ids=["bounds", "gateway", "targets", "shape", "missing", "cron"],
)
def test_what_a_policy_refuses_a_resource_is_refused_for(changed: Json, message: str) -> None:
    with pytest.raises(BadPolicy, match=message):
        pool_spec("chat", {**SPEC, **changed})


def test_the_definition_is_plain_yaml() -> None:
    assert yaml.safe_load(as_yaml()) == definition()
