"""The admin API over HTTP: roles, optimistic concurrency, history, and the life of keys."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contracts.environment import BadSettings, read_settings
from gateway.admin.settings import PREFIX, Settings
from tests.gateway.admin.admin_process import TOKENS, AdminProcess, Reply
from tests.gateway.processes import PEPPER
from tests.support.waiting import eventually

ACME = {"tenant_id": "acme", "tier": "gold"}


@pytest.fixture(scope="module")
def admin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AdminProcess]:
    folder = tmp_path_factory.mktemp("admin")
    process = AdminProcess(folder, ADMIN_POLICY_FILE=str(folder / "policies.json"))
    yield process
    assert process.stop() == 0
    log = process.log()
    assert "sk-pandal-" not in log
    assert not any(token in log for token in TOKENS.values())


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AdminProcess]:
    """Nobody has written a policy there."""
    folder = tmp_path_factory.mktemp("empty")
    process = AdminProcess(folder, ADMIN_POLICY_FILE=str(folder / "policies.json"))
    yield process
    assert process.stop() == 0


def put(admin: AdminProcess, document: dict[str, Any], **others: Any) -> int:
    return admin.ask("PUT", "/policy", document, headers={"if-match": "*"}, **others).status


def test_a_document_is_replaced_by_whom_has_read_it(admin: AdminProcess) -> None:
    assert put(admin, {"tenants": [ACME]}) == 200
    found = admin.ask("GET", "/policy", role="viewer")
    etag = found.headers["etag"]
    assert found.document["tenants"][0]["tenant_id"] == "acme"
    unchanged = admin.ask("GET", "/policy", headers={"if-none-match": etag})
    assert (unchanged.status, unchanged.body) == (304, b"")
    document = {"tenants": [{**ACME, "tokens_per_minute": 5}]}
    first = admin.ask("PUT", "/policy?why=noisy", document, headers={"if-match": etag})
    assert first.status == 200
    assert first.headers["etag"] != etag
    late = admin.ask("PUT", "/policy", {"tenants": []}, headers={"if-match": etag})
    assert (late.status, late.document["error"]["code"]) == (412, "policy_conflict")
    assert admin.ask("PUT", "/policy", document).status == 428
    newest = admin.ask("GET", "/policy/history?limit=1").document["entries"][0]
    assert (newest["who"], newest["why"], newest["action"]) == ("a-owner", "noisy", "edit")
    assert newest["changes"] == [
        {"path": "tenants[acme].tokens_per_minute", "before": "(none)", "after": 5}
    ]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"tenants": [{**ACME, "tpm": 3}]}, "$.tenants[0].tpm"),
        ({"tenants": [{**ACME, "tier": "none"}]}, "$.tenants[0].tier"),
        ({"tenants": [{**ACME, "rules": [{"concurrent_requests": 0}]}]}, "concurrent_requests"),
        (b"{", "one JSON object"),
        (b"[]", "expected members"),
        (b"\xff", "one JSON object"),
        (b"[" * 100_000, "one JSON object"),
    ],
    ids=str,
)
def test_what_is_no_policy_is_refused_by_the_path_of_its_fault(
    admin: AdminProcess, body: object, words: str
) -> None:
    refused = admin.ask("PUT", "/policy", body, headers={"if-match": "*"})
    assert refused.status == 422
    assert words in refused.document["error"]["message"]


def test_every_role_may_do_its_part(admin: AdminProcess) -> None:
    put(admin, {"tenants": [ACME]})
    assert put(admin, {"tenants": []}, role="viewer") == 403
    assert put(admin, {"tenants": [ACME]}, role="operator") == 200
    price = {"model": "m", "input_uncached": 1, "input_cache_read": 1, "output_text": 1}
    assert put(admin, {"tenants": [ACME], "prices": [price]}, role="operator") == 403
    assert put(admin, {"tenants": [ACME], "prices": [price]}, role="owner") == 200
    rollback = {"version": 1}
    assert admin.ask("POST", "/policy/rollback", rollback, role="operator").status == 403
    keys = "/tenants/acme/keys"
    assert admin.ask("POST", keys, {}, role="viewer").status == 403
    assert admin.ask("GET", keys, role="viewer").status == 200
    assert admin.ask("GET", "/whoami", role="viewer").document["role"] == "viewer"


def test_nobody_gets_in_without_a_token(admin: AdminProcess) -> None:
    for path in ("/policy", "/policy/history", "/tenants/acme/keys", "/whoami"):
        refused = admin.ask("GET", path, role="stranger")
        assert refused.status == 401
        assert refused.headers["www-authenticate"] == "Bearer"
        assert b"stranger" not in refused.body


def test_every_request_leaves_a_line_and_a_count(admin: AdminProcess) -> None:
    put(admin, {"tenants": [ACME]})
    listed = admin.ask("GET", "/tenants/acme/keys?x=typed", role="viewer")
    admin.ask("GET", "/typed/by/somebody", role="viewer")
    admin.ask("GET", "/whoami", role="stranger")
    assert admin.ask("LINK", "/policy", role="viewer").status == 405
    by_id = {line["request_id"]: line for line in admin.told("admin request")}
    line = by_id[listed.headers["x-request-id"]]
    told = (line["who"], line["role"], line["method"], line["route"], line["status"])
    assert told == ("a-viewer", "viewer", "GET", "/admin/v1/tenants/{tenant}/keys", 200)
    refused = [line for line in by_id.values() if line["status"] == 401][-1]
    assert (refused["level"], refused["address"]) == ("warning", "127.0.0.1")
    assert "who" not in refused
    assert "typed" not in admin.log()
    assert "LINK" not in admin.log()
    metrics = admin.metrics()
    assert not any("typed" in line for line in metrics)
    for labels in (
        'method="other",route="other",status="404"',
        'method="other",route="/admin/v1/policy",status="405"',
    ):
        assert any(line.startswith(f"pandal_admin_requests_total{{{labels}}}") for line in metrics)
    counted = [line for line in metrics if line.startswith("pandal_admin_refused_logins_total")]
    assert int(counted[0].rpartition(" ")[2]) >= 1


def test_a_client_that_leaves_amid_its_document_is_no_error(admin: AdminProcess) -> None:
    num_before = len(admin.told("admin request"))
    head = f"PUT /admin/v1/policy HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {TOKENS['owner']}"
    with socket.create_connection(("127.0.0.1", admin.port)) as connection:
        connection.sendall(f"{head}\r\nif-match: *\r\ncontent-length: 99\r\n\r\n{{".encode())

    def left() -> bool:
        lines = admin.told("admin request")
        return ("PUT", "/admin/v1/policy", 422) in {
            (line["method"], line["route"], line["status"]) for line in lines[num_before:]
        }

    eventually(left, "the request to be told")
    assert "Traceback" not in admin.log()
    assert not [
        line for line in map(json.loads, admin.log().splitlines()) if line["level"] == "error"
    ]


def test_when_keys_were_used_is_told_of_all_at_once(admin: AdminProcess) -> None:
    assert admin.ask("GET", "/keys-used", role="viewer").document == {"last_used_at": {}}


def test_an_older_version_is_put_back(admin: AdminProcess) -> None:
    put(admin, {"tenants": [ACME]})
    version = admin.ask("GET", "/policy").document["version"]
    put(admin, {"tenants": [{**ACME, "tier": "free"}]})
    told = admin.ask("GET", f"/policy/versions/{version}/diff").document["changes"]
    assert told == [{"path": "tenants[acme].tier", "before": "gold", "after": "free"}]
    done = admin.ask("POST", "/policy/rollback", {"version": version, "why": "oops"})
    assert done.document["version"] == version + 2
    assert admin.ask("GET", "/policy").document["tenants"][0]["tier"] == "gold"
    assert admin.ask("POST", "/policy/rollback", {"version": 10**6}).status == 404


def test_a_key_is_shown_once_rotated_and_revoked(admin: AdminProcess) -> None:
    put(admin, {"tenants": [ACME]})
    keys = "/tenants/acme/keys"
    created = admin.ask("POST", keys, {"name": "ci", "models": ["m"]}, role="operator")
    assert created.status == 201
    key, key_id = created.document["api_key"], created.document["key_id"]
    listed = admin.ask("GET", keys)
    assert key.encode() not in listed.body
    assert b"hash" not in listed.body
    assert key.encode() not in admin.ask("GET", "/policy/history").body
    (shown,) = listed.document["keys"]
    assert (shown["key_prefix"], shown["models"]) == (key[:14], ["m"])
    rotated = admin.ask("POST", f"{keys}/{key_id}/rotate", {"overlap_s": 60}, role="operator")
    assert rotated.document["key_id"] == key_id
    assert rotated.document["api_key"] != key
    assert rotated.document["num_retiring"] == 1
    revoked = admin.ask("DELETE", f"{keys}/{key_id}", role="operator").document
    assert (revoked["is_in_force"], revoked["num_retiring"]) == (False, 0)
    assert admin.ask("POST", f"{keys}/{key_id}/rotate", {}).status == 422
    assert admin.ask("DELETE", f"{keys}/nobody").status == 404
    assert admin.ask("POST", "/tenants/nobody/keys", {}).status == 404
    for name in ("a\n", "\x1b[2J", "\x7f"):
        assert admin.ask("POST", keys, {"name": name}).status == 422
    over = {"expires_at": "2020-01-01T00:00:00Z"}
    assert admin.ask("POST", keys, over).document["error"]["code"] == "policy_refused"


def test_a_document_has_no_names_that_forge_a_terminal(admin: AdminProcess) -> None:
    document = {"tenants": [{**ACME, "rules": [{"model": "m\x1b[2K", "requests_per_minute": 1}]}]}
    refused = admin.ask("PUT", "/policy", document, headers={"if-match": "*"})
    assert refused.status == 422
    assert "$.tenants[0].rules[0].model" in refused.document["error"]["message"]


def test_no_document_brings_a_key_back(admin: AdminProcess) -> None:
    put(admin, {"tenants": [ACME]})
    keys = "/tenants/acme/keys"
    revoked = admin.ask("POST", keys, {}).document["key_id"]
    as_it_was = admin.ask("GET", "/policy").document
    admin.ask("DELETE", f"{keys}/{revoked}")
    refused = admin.ask("PUT", "/policy", as_it_was, headers={"if-match": "*"})
    assert refused.status == 422
    assert "it stays so" in refused.document["error"]["message"]
    other = admin.ask("POST", keys, {}).document["key_id"]
    only_one = {**admin.ask("GET", "/policy").document["tenants"][0]}
    only_one["keys"] = [key for key in only_one["keys"] if key["key_id"] != other]
    assert put(admin, {"tenants": [only_one]}) == 422
    assert put(admin, {"tenants": [ACME]}) == 200  # says nothing of keys
    in_force = {k["key_id"] for k in admin.ask("GET", keys).document["keys"] if k["is_in_force"]}
    assert other in in_force
    assert revoked not in in_force


def test_going_back_brings_a_tenant_with_the_keys_that_it_went_with(admin: AdminProcess) -> None:
    """One that was revoked by hand stays so."""
    put(admin, {"tenants": [ACME, {"tenant_id": "gone", "tier": "free"}]})
    keys = "/tenants/gone/keys"
    key_id = admin.ask("POST", keys, {}).document["key_id"]
    revoked = admin.ask("POST", keys, {}).document["key_id"]
    version = admin.ask("GET", "/policy").document["version"]
    admin.ask("DELETE", f"{keys}/{revoked}")
    later = admin.ask("POST", keys, {}).document["key_id"]
    put(admin, {"tenants": [ACME, {"tenant_id": "since", "tier": "free"}]})
    admin.ask("POST", "/policy/rollback", {"version": version})
    found = {k["key_id"]: k["is_in_force"] for k in admin.ask("GET", keys).document["keys"]}
    assert found == {key_id: True, revoked: False, later: True}
    assert admin.ask("GET", "/tenants/since/policy").status == 200


def test_not_all_tenants_are_dropped_unless_that_is_said(admin: AdminProcess) -> None:
    put(admin, {"tenants": [ACME]})
    assert put(admin, {}) == 422
    assert put(admin, {"tenants": []}) == 422
    done = admin.ask("PUT", "/policy?drop_all=true", {"tenants": []}, headers={"if-match": "*"})
    assert done.status == 200
    assert put(admin, {"tenants": [ACME]}) == 200


def test_the_first_document_takes_nobodys_place(empty: AdminProcess) -> None:
    process = empty
    first = {"if-none-match": "*"}
    assert process.ask("PUT", "/policy", {"tenants": [ACME]}, headers=first).status == 200
    assert process.ask("PUT", "/policy", {"tenants": []}, headers=first).status == 412
    stored = process.folder / "policies.json"
    stored.write_bytes(b'{"version": -1}')  # as by hand; and then as the runbook says
    assert process.ask("GET", "/policy").status == 422
    assert process.ask("POST", "/policy/rollback", {"version": 1}).document["version"] == 2
    assert process.ask("GET", "/policy").document["tenants"][0]["tenant_id"] == "acme"
    stored.write_bytes(b"{")
    assert process.ask("POST", "/tenants/acme/keys", {}).status == 201
    stored.write_bytes(b"{")
    assert (
        process.ask("PUT", "/policy", {"tenants": [ACME]}, headers={"if-match": "*"}).status == 200
    )
    assert len(process.ask("GET", "/tenants/acme/keys").document["keys"]) == 1


def test_what_applies_is_explained(admin: AdminProcess) -> None:
    put(admin, {"tenants": [{**ACME, "terms": [{"model": "m", "weight": 3}]}]})
    told = admin.ask("GET", "/tenants/acme/policy?model=m").document["reasons"]
    words = {reason["field"]: reason["words"] for reason in told}
    assert words["tokens_per_minute"] == "600,000 TPM because tier gold"
    assert words["weight"] == "weight 3 because tenant acme, model m"
    assert admin.ask("GET", "/tenants/acme/policy?key=none").status == 404


def until_refused(replies: Iterator[Reply]) -> Iterator[Reply]:
    for reply in replies:
        yield reply
        if reply.status == 429:
            return


def test_who_guesses_a_token_waits(empty: AdminProcess) -> None:
    guesses = (empty.ask("GET", "/whoami", role="guess") for _ in range(1_000))
    replies = list(until_refused(guesses))
    assert {reply.status for reply in replies[:-1]} == {401}
    assert len(replies) > 20
    assert replies[-1].status == 429
    assert int(replies[-1].headers["retry-after"]) >= 1
    assert empty.ask("GET", "/whoami", role="viewer").status == 200  # at the same address


BAD = {
    "ADMIN_POLICY_FILE": "",
    "ADMIN_KEY_PEPPER": "hunter2",
    "ADMIN_STATIC_TOKENS": '[{"name":"a","token":"hunter2","role":"owner"}]',
    "ADMIN_POLICY_URL": "http://user:hunter2@host",
}


def environment_with(name: str) -> dict[str, str]:
    good = {"ADMIN_POLICY_FILE": "/nowhere/policies.json", "ADMIN_KEY_PEPPER": PEPPER}
    return {n: v for n, v in {**good, name: BAD[name]}.items() if v}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_setting_is_named_and_not_shown(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in environment_with(name).items():
        monkeypatch.setenv(variable, value)
    with pytest.raises(BadSettings) as caught:
        read_settings(Settings, PREFIX, {})
    assert [fault.split(".")[0] for fault in caught.value.faults] == [name]
    assert "hunter2" not in str(caught.value.faults)


def test_with_a_bad_setting_it_does_not_start() -> None:
    name = "ADMIN_STATIC_TOKENS"
    done = subprocess.run(
        [sys.executable, "-m", "gateway.admin"],
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
            **environment_with(name),
        },
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert json.loads(done.stderr.splitlines()[0])["path"].split(".")[0] == name
    assert "hunter2" not in done.stderr
