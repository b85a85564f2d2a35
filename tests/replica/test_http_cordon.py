"""A cordon closes a replica to routers and to nobody else, and can be undone."""

import json

from contracts.load import LOAD_PATH
from contracts.replica_api import CORDON_PATH
from tests.replica.replica_process import ReplicaProcess, events, next_event

STREAM = {
    "prompt": "Count on:",
    "max_tokens": 40,
    "ignore_eos": True,
    "temperature": 0,
    "stream": True,
}


def test_a_stream_lives_through_a_cordon_that_is_undone(replica: ReplicaProcess) -> None:
    connection = replica.connect()
    connection.request("POST", "/v1/completions", json.dumps(STREAM))
    response = connection.getresponse()
    next_event(response)
    for _ in range(2):
        assert replica.request("PUT", CORDON_PATH).status == 200
    closed = replica.get("/ready")
    assert (closed.status, closed.json["phase"]) == (503, "draining")
    load = replica.get(LOAD_PATH).json
    assert (load["is_ready"], load["is_draining"]) == (False, True)
    late = replica.post("/v1/completions", {"prompt": "a", "max_tokens": 1})
    assert late.status == 200, "what was on its way is served"
    *_, finish, done = events(response)
    connection.close()
    assert (finish["choices"][0]["finish_reason"], done) == ("length", "[DONE]")
    for _ in range(2):
        assert replica.request("DELETE", CORDON_PATH).status == 200
    assert replica.get("/ready").status == 200
    assert replica.get(LOAD_PATH).json["is_draining"] is False
