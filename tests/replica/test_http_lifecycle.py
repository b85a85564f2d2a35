"""From the start of the process to each of its ends."""

import json
import os
import signal
import socket
import threading
from pathlib import Path

import msgspec
import pytest

from contracts.replica_api import Phase, ReplicaState, abort_path
from tests.replica.replica_process import (
    Answer,
    ReplicaProcess,
    events,
    next_event,
)
from tests.support.waiting import eventually

LONG = {"prompt": "Count on:", "max_tokens": 40, "ignore_eos": True, "temperature": 0}


def test_loading_shows_progress_and_sigterm_drains(
    replica_settings: dict[str, object], tmp_path: Path
) -> None:
    with ReplicaProcess(tmp_path / "log", **replica_settings) as replica:
        states = [msgspec.convert(s, ReplicaState) for s in replica.wait_ready()]
        assert states[-1].phase is Phase.READY
        loading = [s.progress_ratio for s in states if s.phase is Phase.LOADING]
        assert loading == sorted(loading)
        assert len(loading) > 2

        connection = replica.connect()
        connection.request(
            "POST", "/v1/completions", json.dumps(LONG | {"stream": True, "max_tokens": 150})
        )
        response = connection.getresponse()
        next_event(response)
        replica.terminate()
        eventually(lambda: replica.get("/ready").json["phase"] == "draining", "the drain")
        assert replica.get("/ready").status == 503
        refused = replica.post("/v1/completions", {"prompt": "a", "max_tokens": 1})
        assert refused.status == 503
        assert refused.headers["retry-after"] == "1"
        *_, finish, done = events(response)
        connection.close()
        assert (finish["choices"][0]["finish_reason"], done) == ("length", "[DONE]")
        assert replica.process.wait() == 0


def test_drain_that_takes_too_long_aborts(
    replica_settings: dict[str, object], tmp_path: Path
) -> None:
    settings = replica_settings | {"drain_timeout_s": 0.2}
    with ReplicaProcess(tmp_path / "log", **settings) as replica:
        replica.wait_ready()
        connection = replica.connect()
        body = LONG | {"stream": True, "max_tokens": 900}
        connection.request("POST", "/v1/completions", json.dumps(body))
        response = connection.getresponse()
        next_event(response)
        replica.terminate()
        *_, finish, _done = events(response)
        connection.close()
        assert finish["choices"][0]["finish_reason"] == "abort"
        assert replica.process.wait() == 0


def test_drain_waits_for_no_client(replica_settings: dict[str, object], tmp_path: Path) -> None:
    """Half a head, half a body, an idle connection, and a prompt that is still tokenized."""
    start = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n"
    text = json.dumps(LONG | {"prompt": "word " * 900}).encode()
    sent = {
        "head": start + b"content-le",
        "body": start + b"content-length: 100\r\n\r\n{",
        "idle": b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n",
        "tokenizing": start + b"content-length: %d\r\n\r\n%b" % (len(text), text),
    }
    with ReplicaProcess(tmp_path / "log", **replica_settings) as replica:
        replica.wait_ready()
        clients = {kind: socket.create_connection(("127.0.0.1", replica.port)) for kind in sent}
        for kind, client in clients.items():
            client.sendall(sent[kind])
        assert clients["idle"].recv(1 << 16).startswith(b"HTTP/1.1 200")
        replica.terminate()
        refusal = clients["body"].recv(1 << 16)
        assert replica.process.wait() == 0
        for client in clients.values():
            client.close()
    assert refusal.startswith(b"HTTP/1.1 503")
    assert b"retry-after: 1\r\n" in refusal
    assert b"connection: close\r\n" in refusal
    assert b"draining" not in refusal, "it says so when the engine has failed, too"
    assert "Traceback" not in replica.log
    assert '"error"' not in replica.log


def test_a_body_that_does_not_come_is_not_waited_for(
    replica_settings: dict[str, object], tmp_path: Path
) -> None:
    with ReplicaProcess(tmp_path / "log", **replica_settings, read_timeout_s=0.2) as replica:
        eventually(lambda: "Started server process" in replica.log, "the server process")
        with socket.create_connection(("127.0.0.1", replica.port)) as client:
            client.sendall(b"POST /tokenize HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{")
            with client.makefile("rb") as answer:
                whole = answer.read()  # to the end: the connection is closed
    assert whole.startswith(b"HTTP/1.1 408")
    assert b"body_timeout" in whole
    assert "Traceback" not in replica.log


def test_sigterm_while_loading_ends_at_once(
    replica_settings: dict[str, object], tmp_path: Path
) -> None:
    with ReplicaProcess(tmp_path / "log", **replica_settings) as replica:
        eventually(lambda: "Started server process" in replica.log, "the server process")
        replica.terminate()
        assert replica.process.wait() == 0
        assert "Traceback" not in replica.log


def test_port_in_use_is_said_and_ends_the_replica(
    replica: ReplicaProcess, replica_settings: dict[str, object], tmp_path: Path
) -> None:
    settings = replica_settings | {"port": replica.port}
    with ReplicaProcess(tmp_path / "log", **settings) as second:
        assert second.process.wait() == 1
        assert "cannot listen" in second.log


def test_death_of_the_engine_fails_requests_and_ends_the_replica(
    replica_settings: dict[str, object], tmp_path: Path
) -> None:
    settings = replica_settings | {"failure_linger_s": 8}
    with ReplicaProcess(tmp_path / "log", **settings) as replica:
        replica.wait_ready()
        assert replica.get("/health").status == 200
        body = LONG | {"max_tokens": 900}
        answers: list[Answer] = []
        thread = threading.Thread(
            target=lambda: answers.append(replica.post("/v1/completions", body))
        )
        thread.start()
        connection = replica.connect()
        connection.request(
            "POST",
            "/v1/completions",
            json.dumps(body | {"stream": True, "n": 2}),
            {"x-request-id": "streamed"},
        )
        response = connection.getresponse()
        next_event(response)
        os.kill(replica.engine_pid, signal.SIGKILL)
        *_, last = events(response)
        thread.join()
        assert last["error"]["code"] == "engine_died"
        assert answers[0].status == 500, "a gateway would hand a 503 to the next engine"
        assert answers[0].json["error"]["code"] == "engine_died"
        uncounted = replica.request("POST", abort_path("streamed"))
        assert uncounted.status == 500, "a count of zero would be billed"
        assert uncounted.json["error"]["code"] == "engine_died"
        refused = replica.post("/v1/completions", body)
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        assert refused.json["error"]["code"] == "not_ready"
        assert replica.get("/health").status == 503
        assert replica.get("/ready").json["phase"] == "failed"
        connection.close()
        assert replica.process.wait() == 1


def has_ended(process: Path) -> bool:
    """Or is a zombie that nobody has waited for."""
    try:
        return "Z" in (process / "stat").read_text().split()[2]
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_engine_dies_with_its_parent(replica_settings: dict[str, object], tmp_path: Path) -> None:
    with ReplicaProcess(tmp_path / "log", **replica_settings) as replica:
        replica.wait_ready()
        engine = Path(f"/proc/{replica.engine_pid}")
        replica.process.kill()
        eventually(lambda: has_ended(engine), "the engine's end")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": "no-such-model"}, "neither a .gguf file"),
        ({"model": "/dev"}, "holds no config.json"),
        ({"max_model_len": 100_000}, "the model has 8192"),
        ({"kv_cache_bytes": 4096}, "at least 2 are needed"),
        ({"kv_cache_bytes": 8 << 20, "max_model_len": 4096}, "holds"),
    ],
    ids=["unknown model", "no model", "long context", "no cache", "small cache"],
)
def test_what_cannot_be_loaded_is_said_and_ends_the_replica(
    replica_settings: dict[str, object],
    settings: dict[str, object],
    message: str,
    tmp_path: Path,
) -> None:
    with ReplicaProcess(tmp_path / "log", **(replica_settings | settings)) as replica:
        assert replica.process.wait() == 1
        assert message in replica.log


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"port": "http"}, "REPLICA_PORT"),
        ({"max_num_seqs": 9, "max_num_batched_tokens": 8}, "max_num_batched_tokens"),
    ],
    ids=["port", "budget"],
)
def test_wrong_setting_is_named(settings: dict[str, object], name: str, tmp_path: Path) -> None:
    with ReplicaProcess(tmp_path / "log", **settings) as replica:
        assert replica.process.wait() == 2
        assert name in replica.log
        assert "Traceback" not in replica.log
