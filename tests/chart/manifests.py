"""Reading what was rendered."""

from collections.abc import Iterable, Iterator
from typing import Any

Json = dict[str, Any]


def one(objects: Iterable[Json], kind: str, name: str) -> Json:
    (found,) = (o for o in objects if (o["kind"], o["metadata"]["name"]) == (kind, name))
    return found


def of_kind(objects: Iterable[Json], *kinds: str) -> list[Json]:
    return [o for o in objects if o["kind"] in kinds]


def pod_specs(objects: Iterable[Json]) -> Iterator[tuple[str, Json, Json]]:
    """Name, metadata and spec of every pod, and of every template of one."""
    for found in objects:
        name = f"{found['kind']}/{found['metadata']['name']}"
        if found["kind"] == "Pod":
            yield name, found["metadata"], found["spec"]
        if "template" in found.get("spec", {}):
            template = found["spec"]["template"]
            yield name, template["metadata"], template["spec"]


def containers(spec: Json) -> list[Json]:
    return [*spec.get("initContainers", ()), *spec["containers"]]


def environment(objects: Iterable[Json], spec: Json) -> dict[str, str]:
    """Of the last container: its ConfigMaps' variables, and its own that are plain."""
    container = spec["containers"][-1]
    found: dict[str, str] = {}
    for source in container.get("envFrom", ()):
        found |= one(objects, "ConfigMap", source["configMapRef"]["name"])["data"]
    return found | {v["name"]: v["value"] for v in container.get("env") or () if "value" in v}


def secret_variables(spec: Json) -> list[str]:
    """Of the last container: the names of those that come from Secrets."""
    told = spec["containers"][-1].get("env") or ()
    return [v["name"] for v in told if "secretKeyRef" in v.get("valueFrom", {})]


def keyed(objects: Iterable[Json]) -> dict[str, Json]:
    return {f"{o['apiVersion']} {o['kind']} {o['metadata']['name']}": o for o in objects}
