"""Several autoscalers, other scalers, people, and an API server that goes away."""

import pytest

from autoscaler.kubernetes import paths
from autoscaler.kubernetes.wire import Json
from tests.kubernetes import objects
from tests.kubernetes.conftest import Scene, SceneOf, eventually

pytestmark = pytest.mark.timeout(180)


async def holder(scene: Scene) -> str:
    leases = await scene.get(paths.leases(scene.namespace))
    found = [lease["spec"].get("holderIdentity", "") for lease in leases["items"]]
    return str(found[0]) if found else ""


async def test_when_the_leader_dies_in_a_drain_the_next_one_finishes_it(scene_of: SceneOf) -> None:
    scene = await scene_of(cold_start_s=1.0)
    leader, standby = scene.start_autoscaler(), scene.start_autoscaler()
    await scene.until(lambda status: status.get("ready") == 1, "a leader to look")
    first = await holder(scene)
    dying = leader if first.startswith("autoscaler-0") else standby
    scene.fleet.rate_per_s = 40.0
    await scene.until(lambda status: status.get("ready", 0) >= 4, "more to be ready")
    streaming = [engine for engine in scene.fleet.engines.values() if engine.is_ready]
    for engine in streaming:
        engine.num_streams = 1
    scene.fleet.rate_per_s = 3.0
    await scene.until(
        lambda status: any(v["draining"] > 0 for v in status.get("variants", ())), "a drain"
    )
    dying.kill()

    async def is_followed() -> bool:
        return await holder(scene) not in ("", first)

    await eventually(is_followed, "the other one to lead")
    second = await holder(scene)
    await scene.until(
        lambda status: status.get("decidedBy", "").startswith(second), "the other one to write"
    )
    assert any(engine.is_cordoned for engine in streaming), "what was begun is not forgotten"
    assert scene.fleet.cut == []
    for engine in streaming:
        engine.num_streams = 0
    await scene.until_count(lambda count: count == 1, "the second leader to finish")
    assert scene.fleet.cut == []
    codes = [reason["code"] for reason in (await scene.pool())["status"]["reasons"]]
    assert "manual" not in codes, "the predecessor's counts are no person's"


async def test_with_a_horizontal_pod_autoscaler_beside_it_nothing_is_written(
    scene_of: SceneOf,
) -> None:
    scene = await scene_of()
    scalers = paths.collection("autoscaling/v2", scene.namespace, "horizontalpodautoscalers")
    await scene.api.create(scalers, objects.horizontal_pod_autoscaler(scene.name))
    scene.fleet.rate_per_s = 40.0
    scene.start_autoscaler()
    await scene.until_condition("Conflict", ("True", "ScaledByAnother"))

    def would_order(status: Json) -> bool:
        return any("count 1 ->" in action for action in status.get("planned", ()))

    await scene.until(would_order, "the order that is only said")
    assert await scene.count() == 1
    assert await scene.condition("Acting") == ("False", "Conflict")
    await scene.api.delete(f"{scalers}/{scene.name}")
    await scene.until_condition("Conflict", ("False", "Alone"))
    await scene.until_count(lambda count: count > 1, "the order, once alone")


async def test_a_person_is_respected_within_the_bounds_and_corrected_outside(
    scene_of: SceneOf,
) -> None:
    scene = await scene_of(maxReplicas=4)
    scene.start_autoscaler()
    scene.fleet.rate_per_s = 3.0
    await scene.until(lambda status: status.get("reason") == "steady", "a steady pool")
    await scene.set_count(3)
    await scene.until(lambda status: status.get("reason") == "manual", "the person to be seen")
    assert await scene.count() == 3
    await scene.until_count(lambda count: count == 1, "the person's time to be over")
    await scene.set_count(6)
    await scene.until_count(lambda count: count <= 4, "what is above the ceiling to be corrected")


async def test_a_dry_run_says_and_does_not(scene_of: SceneOf) -> None:
    scene = await scene_of(dryRun=True)
    scene.start_autoscaler()
    scene.fleet.rate_per_s = 40.0
    await scene.until(lambda status: bool(status.get("planned")), "something planned")
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
