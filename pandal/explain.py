"""``pandal explain POOL``: what the autoscaler decided last, why, and what it did about it.

A ReplicaPool's status in Kubernetes, or what the local fleet's autoscaler keeps in the data
directory: the same document, told in the same lines.
"""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from pandal.datadir import DataDir
from pandal.errors import NotFound, StateUnreadable, Unreachable
from pandal.options import DataDirOption, JsonOption, directory
from pandal.screen import say

LOCAL_POOL = "local"
USUAL_KUBECONFIG = Path("~/.kube/config")
_EXPECTED = {"Valid": "True", "Observed": "True", "Conflict": "False", "Schedulable": "True"}

Document = dict[str, Any]  # JSON


def explain(
    pool: Annotated[str, typer.Argument(help="A ReplicaPool's name; 'local' for this machine's.")],
    namespace: Annotated[
        str | None, typer.Option(help="Of the pool, in Kubernetes.", show_default="this machine")
    ] = None,
    kubeconfig: Annotated[
        Path | None,
        typer.Option(
            envvar="KUBECONFIG",
            help="Of the cluster.",
            show_default=f"{USUAL_KUBECONFIG}; in a pod without one, its service account",
        ),
    ] = None,
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Why a pool has the replicas it has."""
    if namespace is None:
        status = read_local(directory(data_dir), pool)
    else:
        status = read_cluster(namespace, pool, kubeconfig_at(kubeconfig))
    if as_json:
        say(msgspec.json.encode(status).decode())
    else:
        for line in lines(pool, status):
            say(line)


def read_local(data_dir: DataDir, pool: str) -> Document:
    """Raises NotFound and StateUnreadable."""
    if pool != LOCAL_POOL:
        raise NotFound(
            f"this machine's pool is '{LOCAL_POOL}', not '{pool}'; --namespace asks a cluster"
        )
    try:
        return msgspec.json.decode(data_dir.scaling.read_bytes(), type=Document)
    except FileNotFoundError:
        raise NotFound(
            f"no autoscaler has decided anything in {data_dir.root}; start one with "
            "'pandal up --replicas 1 --autoscale 3'"
        ) from None
    except msgspec.DecodeError as exc:
        raise StateUnreadable(f"{data_dir.scaling}: {exc}") from exc


def kubeconfig_at(told: Path | None, *, usual: Path = USUAL_KUBECONFIG) -> Path | None:
    """``None``: there is none, as in a pod.  Raises NotFound for one that was told."""
    if told is None:
        usual = usual.expanduser()
        return usual if usual.exists() else None
    several = [Path(part).expanduser() for part in str(told).split(os.pathsep)]
    if not any(path.exists() for path in several):
        raise NotFound(f"there is no kubeconfig at {told}")
    return Path(os.pathsep.join(map(str, several)))


def read_cluster(namespace: str, pool: str, kubeconfig: Path | None) -> Document:
    """``kubeconfig``: None asks as the pod that this is.  Raises NotFound and Unreachable."""
    from pandal.installation import require_extras

    require_extras(("autoscaler",))
    from autoscaler.errors import Absent, AutoscalerError

    try:
        found: Document = asyncio.run(_resource(namespace, pool, kubeconfig))
    except Absent:
        raise NotFound(f"there is no ReplicaPool '{pool}' in namespace '{namespace}'") from None
    except AutoscalerError as exc:
        raise Unreachable(str(exc)) from exc
    status = found.get("status")
    if not isinstance(status, dict):
        raise NotFound(f"no autoscaler has decided anything about '{pool}' yet")
    return status


async def _resource(namespace: str, pool: str, kubeconfig: Path | None) -> Document:
    from autoscaler.kubernetes import paths
    from autoscaler.kubernetes.api import connected
    from autoscaler.kubernetes.objects import decoded

    async with connected(kubeconfig, request_timeout_s=10.0) as api:
        body = await api.get(f"{paths.pools(namespace)}/{pool}")
    return decoded(body, Document)


def lines(pool: str, status: Document) -> Iterator[str]:
    yield (
        f"{pool}: {status.get('wanted', '?')} wanted, {status.get('ordered', '?')} ordered, "
        f"{status.get('ready', '?')} ready, as of {status.get('decidedAt', '?')}"
    )
    for variant in status.get("variants", ()):
        others = ("starting", "draining", "unschedulable", "stuck", "terminating")
        told = [f"{variant[name]} {name}" for name in others if variant.get(name)]
        detail = f" ({', '.join(told)})" if told else ""
        yield f"  {variant['name']}: {variant['wanted']} wanted, {variant['ready']} ready{detail}"
    for reason in status.get("reasons", ()):
        yield f"  {reason['code']}: {reason['message']}"
    for action in status.get("planned", ()):
        yield f"  planned: {action}"
    for condition in status.get("conditions", ()):
        if _is_worth_a_line(condition):
            yield f"  {condition['type']} is {condition['status']}: {condition['message']}"


def _is_worth_a_line(condition: Document) -> bool:
    expected = _EXPECTED.get(condition["type"], "True")
    return bool(condition["status"] != expected)
