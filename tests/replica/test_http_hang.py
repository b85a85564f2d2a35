"""An engine that stands still: noticed, said, and ended so that a supervisor can start it anew."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from contracts.replica_api import abort_path
from tests.replica.replica_process import Answer, ReplicaProcess
from tests.support.waiting import eventually

LONG = {"prompt": "Count on:", "max_tokens": 900, "ignore_eos": True, "temperature": 0}
RUNNING = "vllm:num_requests_running"


@contextmanager
def asked(replica: ReplicaProcess) -> Iterator[list[Answer]]:
    """A request is running inside; its answer is there afterwards."""
    answers: list[Answer] = []
    headers = {"x-request-id": "asked"}
    thread = threading.Thread(
        target=lambda: answers.append(replica.post("/v1/completions", LONG, headers))
    )
    thread.start()
    replica.wait_metric(RUNNING, 1)
    yield answers
    thread.join()


def wait_unready(replica: ReplicaProcess) -> Answer:
    eventually(lambda: replica.get("/ready").status != 200, "the hang to be noticed")
    return replica.get("/ready")


def test_a_hung_engine_is_reported_and_the_replica_ends(
    replica_settings: dict[str, object], tmp_path: Path
) -> None:
    settings = replica_settings | {"step_timeout_s": 2, "hang_exit_timeout_s": 10}
    with ReplicaProcess(tmp_path / "log", **settings) as replica:
        replica.wait_ready()
        with asked(replica) as answers:
            os.kill(replica.engine_pid, signal.SIGSTOP)
            ready = wait_unready(replica)
            assert ready.json["phase"] == "failed"
            assert "has not stepped for" in ready.json["detail"]
            health = replica.get("/health")
            assert health.status == 200, "nobody should kill it for that: it ends by itself"
            assert "has not stepped for" in health.json["detail"]
            assert replica.post("/v1/completions", LONG).status == 503
        assert answers[0].status == 500
        assert answers[0].json["error"]["code"] == "engine_died"
        assert replica.process.wait() == 1
        assert "has not stepped for" in replica.log.splitlines()[-1]


def test_an_engine_that_goes_on_is_ready_again(
    replica_settings: dict[str, object], tmp_path: Path
) -> None:
    settings = replica_settings | {"step_timeout_s": 2, "hang_exit_timeout_s": 600}
    settings |= {"drain_timeout_s": 0.2}
    with ReplicaProcess(tmp_path / "log", **settings) as replica:
        replica.wait_ready()
        with asked(replica):
            os.kill(replica.engine_pid, signal.SIGSTOP)
            wait_unready(replica)
            silent = replica.request("POST", abort_path("asked"))
            assert silent.status == 504
            assert silent.json["error"]["code"] == "engine_silent"
            os.kill(replica.engine_pid, signal.SIGCONT)
            eventually(lambda: replica.get("/ready").status == 200, "to be ready again")
            replica.terminate()
        assert replica.process.wait() == 0


def test_a_hung_engine_does_not_keep_a_replica_that_is_to_end(
    replica_settings: dict[str, object], tmp_path: Path
) -> None:
    settings = replica_settings | {"drain_timeout_s": 0.2}
    with ReplicaProcess(tmp_path / "log", **settings) as replica:
        replica.wait_ready()
        with asked(replica) as answers:
            os.kill(replica.engine_pid, signal.SIGSTOP)
            replica.terminate()
        assert answers[0].json["error"]["code"] == "engine_died"
        assert replica.process.wait() == 1


def test_an_idle_engine_is_not_hung(replica: ReplicaProcess) -> None:
    assert replica.get("/health").json["phase"] == "ready"
