"""What the API server makes of the resource: accepted, filled in, printed, or refused by name."""

import msgspec
import pytest

from autoscaler.errors import ClusterRefused
from autoscaler.kubernetes import paths
from autoscaler.kubernetes.api import KubernetesApi
from autoscaler.kubernetes.resource import pool_spec
from autoscaler.kubernetes.wire import Json
from tests.kubernetes import objects

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
