"""Another autoscaler on the same target: what it writes stays, and the conflict is said."""

from autoscaler.kubernetes import paths
from autoscaler.kubernetes.wire import Json
from tests.kubernetes import objects
from tests.kubernetes.conftest import Scene, SceneOf, install_definition

KEDA = ("keda.sh", "v1alpha1", "ScaledObject", "scaledobjects")


async def test_with_a_horizontal_pod_autoscaler_beside_it_nothing_is_written(
    scene_of: SceneOf,
) -> None:
    scene = await scene_of()
    scalers = paths.collection("autoscaling/v2", scene.namespace, "horizontalpodautoscalers")
    await scene.api.create(scalers, objects.horizontal_pod_autoscaler(scene.name))
    scene.fleet.rate_per_s = 40.0
    scene.start_autoscaler()
    await _stands_still(scene, "HorizontalPodAutoscaler/chat scales Deployment/chat too")
    await scene.api.delete(f"{scalers}/{scene.name}")
    await scene.until_condition("Conflict", ("False", "Alone"))
    await scene.until_count(lambda count: count > 1, "the order, once alone")


async def test_beside_keda_nothing_is_written_though_it_made_no_scaler_yet(
    scene_of: SceneOf,
) -> None:
    """KEDA at zero has no HorizontalPodAutoscaler; above it has one, named after its object."""
    scene = await scene_of()
    await install_definition(scene.api, *KEDA)
    scaled_objects = paths.collection("keda.sh/v1alpha1", scene.namespace, "scaledobjects")
    scaled_object: Json = {
        "apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "metadata": {"name": "theirs"},
        "spec": {"scaleTargetRef": {"name": scene.name}, "triggers": []},
    }  # fmt: skip
    await scene.api.create(scaled_objects, scaled_object)
    scene.fleet.rate_per_s = 40.0
    scene.start_autoscaler()
    await _stands_still(scene, "ScaledObject/theirs scales Deployment/chat too")
    scalers = paths.collection("autoscaling/v2", scene.namespace, "horizontalpodautoscalers")
    made = objects.horizontal_pod_autoscaler(scene.name)
    made["metadata"] = {"name": "keda-hpa-theirs"}
    await scene.api.create(scalers, made)
    await scene.api.delete(f"{scaled_objects}/theirs")
    await _stands_still(scene, "HorizontalPodAutoscaler/keda-hpa-theirs scales Deployment/chat too")
    await scene.api.delete(f"{scalers}/keda-hpa-theirs")
    await scene.until_condition("Conflict", ("False", "Alone"))


async def _stands_still(scene: Scene, said: str) -> None:
    def is_said(status: Json) -> bool:
        would_order = any("count 1 ->" in action for action in status.get("planned", ()))
        conditions = {c["type"]: c for c in status.get("conditions", ())}
        told = conditions.get("Conflict", {})
        return would_order and (told.get("status"), told.get("message")) == ("True", said)

    await scene.until(is_said, f"{said}, and the order that is only said")
    assert await scene.count() == 1
    assert await scene.condition("Acting") == ("False", "Conflict")
