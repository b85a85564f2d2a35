"""What the machine must offer, checked before anything is started: ports, disk, model, replicas.

Each check raises PreflightFailed or BadOption with one line for people.
"""

import errno
import os
import shutil
import socket
from itertools import islice
from pathlib import Path

import msgspec

from pandal.datadir import DataDir
from pandal.errors import PreflightFailed, Unreachable
from pandal.http_client import Endpoint, get, parse_url
from pandal.model_choice import ModelChoice, choose_model, model_cache_dir
from pandal.plan import HOST, DevReplica, FleetPlan, OwnReplica, UpOptions
from pandal.valkey import valkey_binary

MIN_FREE_BYTES = 200_000_000  # quota log, spool and ledger of a long day, with room to spare
_PROBE_BYTES = 65_536
_DEV_REPLICA_TIMEOUT_S = 5.0


def check_surroundings(options: UpOptions) -> FleetPlan:
    """Needs the data directory's lock.  Ports, disk, model, other people's replicas."""
    binary = valkey_binary()
    check_port(options.port)
    check_disk(options.data_dir.root)
    dev_replicas, dev_model = _find_dev_replicas(options)
    choice = _own_model(options) if dev_model is None else ModelChoice(options.model, dev_model)
    num_own = 0 if dev_replicas else options.num_replicas
    ports = free_ports(num_own, after=options.port)
    return FleetPlan(
        data_dir=options.data_dir,
        gateway=Endpoint(HOST, options.port),
        valkey_binary=binary,
        model=choice.model,
        model_cache=options.model_cache,
        served_model=choice.served_name,
        own_replicas=tuple(
            OwnReplica(f"replica-{index}", port) for index, port in enumerate(ports)
        ),
        dev_replicas=dev_replicas,
        threads_per_replica=max(1, len(os.sched_getaffinity(0)) // options.num_replicas),
        kafka_bootstrap=options.kafka_bootstrap,
        is_once=options.is_once,
    )


def check_port(port: int) -> None:
    with socket.socket() as probe:
        # As servers do: connections of the fleet before, still in TIME_WAIT, are no hindrance.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as exc:
            if exc.errno == errno.EADDRINUSE:
                reason = "is in use by another program; choose one with --port"
            else:
                reason = f"cannot be used: {exc.strerror}"
            raise PreflightFailed(f"port {port} {reason}") from exc


def check_disk(folder: Path) -> None:
    """``folder`` exists.  Free space is asked for, and a write tried: quotas do not show in it."""
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < MIN_FREE_BYTES:
        raise PreflightFailed(
            f"disk almost full: {folder} has {free_bytes // 1_000_000} MB free, "
            f"{MIN_FREE_BYTES // 1_000_000} MB are needed"
        )
    probe = folder / f".probe-{os.getpid()}"
    try:
        with probe.open("wb") as file:
            file.write(bytes(_PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError as exc:
        raise PreflightFailed(f"cannot write to {folder}: {exc.strerror}") from exc
    finally:
        probe.unlink(missing_ok=True)


def free_ports(count: int, *, after: int) -> tuple[int, ...]:
    """The next ones behind ``after`` that can be bound.

    Not the kernel's choice: its range is also where outgoing connections get theirs, and a
    replica binds its port only seconds from now.  Raises PreflightFailed.
    """
    found = tuple(islice(filter(_is_free, range(after + 1, 65_536)), count))
    if len(found) < count:
        raise PreflightFailed(f"no {count} free ports above {after}; choose a lower --port")
    return found


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


class _Model(msgspec.Struct):
    id: str


class _ModelList(msgspec.Struct):
    data: list[_Model]


def _find_dev_replicas(options: UpOptions) -> tuple[tuple[DevReplica, ...], str | None]:
    """The replicas, and the model that the first of them serves."""
    replicas = tuple(
        DevReplica(f"replica-{index}", parse_url(url, option="--dev-replica"))
        for index, url in enumerate(options.dev_replica_urls)
    )
    models = [_served_model(replica) for replica in replicas]
    return replicas, (models[0] if models else None)


def _served_model(replica: DevReplica) -> str:
    where = f"--dev-replica {replica.endpoint.url}"
    try:
        answer = get(replica.endpoint, "/v1/models", timeout_s=_DEV_REPLICA_TIMEOUT_S)
        models = answer.decode(_ModelList).data if answer.status == 200 else []
    except Unreachable as exc:
        raise PreflightFailed(f"{where} does not answer /v1/models ({exc})") from exc
    if not models:
        raise PreflightFailed(f"{where} lists no model (status {answer.status} on /v1/models)")
    return models[0].id


def _own_model(options: UpOptions) -> ModelChoice:
    cache_dir = model_cache_dir(options.model_cache)
    check_disk(_nearest_existing(cache_dir))
    return choose_model(options.model, cache_dir)


def _nearest_existing(folder: Path) -> Path:
    return next(p for p in (folder, *folder.parents) if p.is_dir())


def prepare_data_dir(data_dir: DataDir) -> None:
    data_dir.create()
    if not os.access(data_dir.root, os.W_OK | os.X_OK):
        raise PreflightFailed(f"data directory {data_dir.root} is not writable")
