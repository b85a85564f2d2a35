"""``pandal policy`` and ``pandal keys`` over a real admin API."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from pandal.admin_client import AdminClient, decoded
from pandal.cli import app
from pandal.errors import BadOption, EditConflict, NotFound, Unreachable
from pandal.key_access import NewSecret
from tests.gateway.admin.admin_process import TOKENS, AdminProcess


@pytest.fixture(scope="module")
def admin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AdminProcess]:
    folder = tmp_path_factory.mktemp("admin")
    process = AdminProcess(folder, ADMIN_POLICY_FILE=str(folder / "policies.json"))
    yield process
    process.stop()


def run(admin: AdminProcess, *arguments: str, role: str = "owner") -> Result:
    environment = {"PANDAL_ADMIN_TOKEN": TOKENS[role]}
    url = f"http://127.0.0.1:{admin.port}"
    result = CliRunner().invoke(app, [*arguments, "--admin", url], env=environment)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result


def test_a_policy_is_imported_edited_and_put_back(admin: AdminProcess, tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text("tenants: [{tenant_id: acme, tier: gold}]")
    assert "version" in run(admin, "policy", "import", str(path), "--why", "first").stdout
    run(admin, "policy", "set", "acme", "tokens_per_minute=5000")
    assert "5,000 TPM because tenant acme" in run(admin, "policy", "explain", "acme").stdout
    newest = json.loads(run(admin, "policy", "history", "--json").stdout)[0]
    assert (newest["who"], newest["why"]) == ("a-owner", "set")
    run(admin, "policy", "rollback", str(newest["version"] - 1))
    assert run(admin, "policy", "import", str(path), "--check").stdout == "no drift\n"


def test_keys_are_given_out_rotated_and_revoked(admin: AdminProcess, tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text("tenants: [{tenant_id: keyed, tier: gold}]")
    run(admin, "policy", "import", str(path))
    of = ("--tenant", "keyed")
    created = json.loads(run(admin, "keys", "create", *of, "--name", "ci", "--json").stdout)
    key_id = created["key_id"]
    rotated = json.loads(run(admin, "keys", "rotate", key_id, *of, "--json").stdout)
    assert rotated["key_id"] == key_id
    assert rotated["api_key"] != created["api_key"]
    run(admin, "keys", "revoke", key_id, *of)
    (listed,) = json.loads(run(admin, "keys", "list", *of, "--json").stdout)
    assert (listed["key_id"], listed["is_in_force"], listed["name"]) == (key_id, False, "ci")


def test_refusals_are_told_in_the_apis_own_words(admin: AdminProcess, tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text("tenants: [{tenant_id: acme, tier: gold}]")
    run(admin, "policy", "import", str(path))
    client = AdminClient(f"http://127.0.0.1:{admin.port}", TOKENS["operator"])
    found = client.current()
    with pytest.raises(EditConflict, match="changed"):
        client.replace(found.document, expected="other", action="edit", why="")
    with pytest.raises(NotFound, match="no version 999"):
        client.version(999)
    with pytest.raises(Unreachable, match="token is not good"):
        AdminClient(f"http://127.0.0.1:{admin.port}", "wrong").current()
    with pytest.raises(Unreachable):
        AdminClient("http://127.0.0.1:1", "x").current()
    with pytest.raises(BadOption, match="--admin"):
        AdminClient("ftp://host", "x")
    with pytest.raises(BadOption, match="policy set"):
        run(admin, "keys", "create", "--tenant", "acme", "--tier", "gold")


@pytest.mark.parametrize(
    "url",
    ["http://host:99999", "http://[::1", "http://", "http://hunter2:hunter2@host", "//host"],
    ids=str,
)
def test_an_address_that_is_none_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(BadOption, match="--admin") as caught:
        AdminClient(url, "x")
    assert "hunter2" not in str(caught.value)


def test_another_server_in_its_place_is_told(admin: AdminProcess) -> None:
    """Whatever answers: it is no traceback."""
    client = AdminClient(f"http://127.0.0.1:{admin.port}", TOKENS["owner"])
    with pytest.raises(Unreachable, match="unexpected answer"):
        decoded(client.call("GET", "/whoami")[0], NewSecret)
    with pytest.raises(BadOption, match="PANDAL_ADMIN_TOKEN"):
        AdminClient("http://host", "two\nlines")
    with pytest.raises(Unreachable):
        AdminClient(f"http://{'x' * 64}.invalid", "x").current()


def test_without_a_token_nothing_is_asked() -> None:
    result = CliRunner().invoke(app, ["policy", "get", "--admin", "http://127.0.0.1:1"], env={})
    assert isinstance(result.exception, BadOption)
    assert "PANDAL_ADMIN_TOKEN" in str(result.exception)
