"""Replicas are waited for as long as they get on, and no longer."""

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
import pytest

from contracts.replica_api import Phase, ReplicaState
from pandal.datadir import DataDir
from pandal.errors import FleetFailed
from pandal.http_client import Address
from pandal.plan import FleetPlan, OwnReplica
from pandal.readiness import replicas_ready
from replica.engine.messages import KvCacheDtype, Precision

READY = ReplicaState(phase=Phase.READY, progress_ratio=1.0)


def loading(ratio: float) -> ReplicaState:
    return ReplicaState(phase=Phase.LOADING, progress_ratio=ratio)


class SeenStates:
    def __init__(self) -> None:
        self.phases: list[Phase] = []

    def show(self, name: str, phase: Phase, ratio: float, detail: str) -> None:
        self.phases.append(phase)


@contextmanager
def replica(*states: ReplicaState) -> Iterator[int]:
    """The port of one that tells these states on /ready, one at each look; the last for ever."""
    left = deque(states)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = msgspec.json.encode(left.popleft() if len(left) > 1 else left[0])
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            """Silent."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def plan(data_dir: DataDir, *ports: int) -> FleetPlan:
    return FleetPlan(
        data_dir=data_dir,
        gateway=Address("127.0.0.1", 8080),
        admin=None,
        valkey_binary=Path("/valkey-server"),
        model="tiny",
        model_cache=None,
        served_model="tiny",
        own_replicas=tuple(OwnReplica(f"replica-{n}", port) for n, port in enumerate(ports)),
        dev_replicas=(),
        threads_per_replica=1,
        precision=Precision.EXACT,
        kv_cache_dtype=KvCacheDtype.FLOAT32,
        kafka_bootstrap=None,
        is_once=False,
    )


async def test_replicas_that_get_on_are_waited_for(data_dir: DataDir) -> None:
    seen = SeenStates()
    with replica(loading(0.1), loading(0.2), READY) as first, replica(READY) as second:
        await replicas_ready(plan(data_dir, first, second), seen, stall_patience_s=3_600)
    assert seen.phases.count(Phase.READY) == 2


async def test_a_replica_that_stays_at_one_point_is_given_up(data_dir: DataDir) -> None:
    with (
        replica(loading(0.3)) as stuck,
        pytest.raises(FleetFailed, match=r"replica-0 has not moved for 2\.5 s, at loading 30% \("),
    ):
        # Longer than a look may take: a first one that is not answered in time is not the last.
        await replicas_ready(plan(data_dir, stuck), SeenStates(), stall_patience_s=2.5)


async def test_a_replica_that_never_listens_is_given_up(data_dir: DataDir, free_port: int) -> None:
    with pytest.raises(FleetFailed, match="at starting 0%"):
        await replicas_ready(plan(data_dir, free_port), SeenStates(), stall_patience_s=0.3)


async def test_a_replica_that_says_it_failed_is_believed_and_quoted_once(
    data_dir: DataDir,
) -> None:
    seen = SeenStates()
    failed = ReplicaState(phase=Phase.FAILED, progress_ratio=0.0, detail="no such file")
    with (
        replica(failed) as port,
        pytest.raises(FleetFailed, match=r"cannot serve its model: no such file \(log: "),
    ):
        await replicas_ready(plan(data_dir, port), seen)
    assert Phase.FAILED not in seen.phases
