"""What the machine must offer, checked before anything is started.

Ports, disk, brokers, other people's replicas, the model.

Each check raises PreflightFailed or BadOption with one line for people.
"""

import errno
import os
import shutil
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import msgspec

from contracts.names import USAGE_TOPIC
from pandal.datadir import DataDir
from pandal.errors import BadOption, PreflightFailed, Unreachable
from pandal.http_client import Address, get, parse_url
from pandal.kafka import brokers_at, check_brokers
from pandal.plan import DEFAULT_ALIAS, HOST, DevReplica, FleetPlan, OwnReplica, UpOptions
from pandal.valkey import valkey_binary
from replica.errors import ModelError
from replica.model.store import is_known, model_name, resolve
from replica.settings import default_cache_dir

MIN_FREE_BYTES = 200_000_000  # quota log, spool and ledger of a long day, with room to spare
_PROBE_BYTES = 65_536
_DEV_REPLICA_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """Which model the fleet will serve, before anything is downloaded."""

    model: str  # a name or an absolute path, as replicas take it
    served_name: str  # what clients and price books call it


def check_surroundings(options: UpOptions) -> FleetPlan:
    """Needs the data directory's lock.  Ports, disk, Kafka, other people's replicas, model."""
    binary = valkey_binary()
    check_port(options.port)
    check_disk(options.data_dir.root)
    if options.kafka_bootstrap is not None:
        assert options.kafka_access is not None, "whoever names brokers says how to speak to them"
        check_brokers(brokers_at(options.kafka_bootstrap, options.kafka_access), USAGE_TOPIC)
    dev_replicas, dev_model = _find_dev_replicas(options)
    choice = _own_model(options) if dev_model is None else ModelChoice(options.model, dev_model)
    most = options.num_replicas if options.autoscale_to is None else options.autoscale_to
    num_own = 0 if dev_replicas else most
    *ports, admin_port = free_ports(num_own + 1, after=options.port)
    return FleetPlan(
        data_dir=options.data_dir,
        gateway=Address(HOST, options.port),
        admin=None if options.is_once else Address(HOST, admin_port),
        valkey_binary=binary,
        model=choice.model,
        model_cache=options.model_cache,
        served_model=choice.served_name,
        own_replicas=tuple(
            OwnReplica(f"replica-{index}", port) for index, port in enumerate(ports)
        ),
        dev_replicas=dev_replicas,
        threads_per_replica=max(1, len(os.sched_getaffinity(0)) // most),
        precision=options.precision,
        kv_cache_dtype=options.kv_cache_dtype,
        kafka_bootstrap=options.kafka_bootstrap,
        is_once=options.is_once,
        adapters=_adapters(options, choice),
        autoscale_from=None if options.autoscale_to is None else options.num_replicas,
    )


def _adapters(options: UpOptions, choice: ModelChoice) -> Mapping[str, Path]:
    """What replicas would find out after they were started."""
    for name, folder in options.adapters.items():
        if name == choice.served_name:
            raise BadOption(f"--adapter: {name!r} is the model's own name")
        if name == DEFAULT_ALIAS:
            raise BadOption(f"--adapter: {name!r} is what the model is called here")
        if not folder.is_dir():
            raise PreflightFailed(f"--adapter {name}: {folder} is no folder")
    return {name: folder.absolute() for name, folder in options.adapters.items()}


def check_port(port: int) -> None:
    refusal = _refusal(port)
    if refusal is None:
        return
    if refusal.errno == errno.EADDRINUSE:
        reason = "is in use by another program; choose one with --port"
    else:
        reason = f"cannot be used: {refusal.strerror}"
    raise PreflightFailed(f"port {port} {reason}") from refusal


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
    found = tuple(islice((p for p in range(after + 1, 65_536) if _refusal(p) is None), count))
    if len(found) < count:
        raise PreflightFailed(f"no {count} free ports above {after}; choose a lower --port")
    return found


def _refusal(port: int) -> OSError | None:
    """Why it cannot be bound; ``None``: it can."""
    with socket.socket() as probe:
        # As servers do: connections of the fleet before, still in TIME_WAIT, are no hindrance.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as exc:
            return exc
    return None


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
    where = f"--dev-replica {replica.address.url}"
    try:
        answer = get(replica.address, "/v1/models", timeout_s=_DEV_REPLICA_TIMEOUT_S)
        models = answer.decode(_ModelList).data if answer.status == 200 else []
    except Unreachable as exc:
        raise PreflightFailed(f"{where} does not answer /v1/models ({exc})") from exc
    if not models:
        raise PreflightFailed(f"{where} lists no model (status {answer.status} on /v1/models)")
    return models[0].id


def _own_model(options: UpOptions) -> ModelChoice:
    cache_dir = _model_cache_dir(options.model_cache)
    check_disk(_nearest_existing(cache_dir))
    return _choose_model(options.model, cache_dir)


def _model_cache_dir(chosen: Path | None) -> Path:
    return default_cache_dir() if chosen is None else chosen


def _choose_model(model: str, cache_dir: Path) -> ModelChoice:
    """Raises PreflightFailed unless ``model`` is a known name, a .gguf file or a model folder."""
    name = model_name(model)
    if is_known(model):
        return ModelChoice(name, name)  # the replica fetches it, and shows its progress
    try:
        path = resolve(model, cache_dir, lambda ratio: None)
    except ModelError as exc:
        raise PreflightFailed(f"--model: {exc}") from exc
    return ModelChoice(str(path.absolute()), name)


def _nearest_existing(folder: Path) -> Path:
    return next(p for p in (folder, *folder.parents) if p.is_dir())


def prepare_data_dir(data_dir: DataDir) -> None:
    data_dir.create()
    if not os.access(data_dir.root, os.W_OK | os.X_OK):
        raise PreflightFailed(f"data directory {data_dir.root} is not writable")
