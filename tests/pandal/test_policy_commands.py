"""``pandal policy`` and ``pandal keys`` on a local data directory."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from contracts.policy import PolicyDocument
from pandal.cli import app
from pandal.datadir import DataDir
from pandal.errors import BadOption, Drifted, NotFound
from pandal.keys import KeyRequest, create_key
from pandal.policy_access import LocalPolicies
from tests.pandal.command_line import PANDAL, assert_refused, pandal


def run(data_dir: DataDir, *arguments: str, **environment: str) -> Result:
    arguments = (*arguments, "--data-dir", str(data_dir.root))
    result = CliRunner().invoke(app, arguments, env=environment, catch_exceptions=True)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def lines(data_dir: DataDir, *arguments: str, **environment: str) -> list[str]:
    result = run(data_dir, *arguments, **environment)
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


@pytest.fixture
def acme(data_dir: DataDir) -> DataDir:
    """With one key of a tenant."""
    create_key(data_dir, KeyRequest("acme", tier="gold"))
    return data_dir


def key_id(data_dir: DataDir) -> str:
    (key,) = json.loads(lines(data_dir, "keys", "list", "--tenant", "acme", "--json")[0])
    return str(key["key_id"])


def test_what_is_set_is_explained(acme: DataDir) -> None:
    key = key_id(acme)
    lines(acme, "policy", "set", "acme", "tokens_per_minute=20000", "--key", key, "--why", "noisy")
    lines(acme, "policy", "set", "acme", "max_completion_tokens=9", "--model", "m")
    told = lines(acme, "policy", "explain", "acme", "--model", "m", "--key", key)
    assert told[0] == f"20,000 TPM because tier gold, narrowed by key {key}"
    assert "max completion tokens 9 because tenant acme, model m" in told
    assert "noisy" in "\n".join(lines(acme, "policy", "history"))


def test_what_is_unset_is_the_tiers_again(acme: DataDir) -> None:
    lines(acme, "policy", "set", "acme", "requests_per_minute=5", "concurrent_requests=2")
    lines(acme, "policy", "set", "acme", "providers=openai,rented")
    (tenant,) = yaml.safe_load("\n".join(lines(acme, "policy", "get", "acme")))["tenants"]
    assert tenant["providers"] == ["openai", "rented"]
    unset = ("requests_per_minute=", "concurrent_requests=", "providers=")
    lines(acme, "policy", "set", "acme", *unset)
    (tenant,) = yaml.safe_load("\n".join(lines(acme, "policy", "get", "acme")))["tenants"]
    assert set(tenant) == {"tenant_id", "tier", "keys"}


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("acme", "tpm=5"), "tpm: expected one of tier"),
        (("acme", "tokens_per_minute=0"), "tokens_per_minute: expected an integer >= 1"),
        (("acme", "weight=x"), "weight: expected an integer or null, got a text"),
        (("acme", "tokens_per_minute"), "FIELD=VALUE"),
        (("acme", "tier=none"), r"\$\.tenants\[0\]\.tier"),
        (("acme", "tier=free", "--model", "m"), "whole tenant"),
        (("acme", "weight=5", "--model", ""), "--model: expected a name"),
        (("acme", "tokens_per_minute=5", "--key", ""), "--key: expected a name"),
        (("acme", "allowed_models=[a,b]"), "NAME,NAME"),
        (("acme", 'allowed_models="a", "b"'), "NAME,NAME"),
        (("acme", "allowed_models=a,"), "NAME,NAME"),
    ],
    ids=str,
)
def test_an_assignment_that_cannot_be_is_named(
    acme: DataDir, arguments: tuple[str, ...], complaint: str
) -> None:
    with pytest.raises(BadOption, match=complaint):
        run(acme, "policy", "set", *arguments)


def test_history_diff_and_rollback(acme: DataDir) -> None:
    lines(acme, "policy", "set", "acme", "tier=free", "--why", "did not pay")
    assert lines(acme, "policy", "diff", "1") == ['tenants[acme].tier: "gold" -> "free"']
    told = lines(acme, "policy", "rollback", "1", "--why", "paid")
    assert told == ['tenants[acme].tier: "free" -> "gold"', "version 3"]
    entries = json.loads(lines(acme, "policy", "history", "--json")[0])
    assert [(e["action"], e["why"]) for e in entries][:2] == [
        ("rollback", "back to version 1: paid"),
        ("set", "did not pay"),
    ]
    with pytest.raises(NotFound):
        run(acme, "policy", "rollback", "99")


def test_going_back_brings_no_key_back(acme: DataDir) -> None:
    key = key_id(acme)
    lines(acme, "keys", "revoke", key, "--tenant", "acme")
    create_key(acme, KeyRequest("acme"))
    lines(acme, "policy", "rollback", "1")
    states = [k["is_in_force"] for k in json.loads(lines(acme, *LIST)[0])]
    assert states == [False, True]


def test_an_older_text_brings_no_key_back(acme: DataDir, tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    key = key_id(acme)
    path.write_text("\n".join(lines(acme, "policy", "export")))
    lines(acme, "keys", "revoke", key, "--tenant", "acme")
    create_key(acme, KeyRequest("acme"))
    lines(acme, "policy", "set", "acme", "tier=free")
    assert lines(acme, "policy", "import", str(path))[0] == 'tenants[acme].tier: "free" -> "gold"'
    assert [k["is_in_force"] for k in json.loads(lines(acme, *LIST)[0])] == [False, True]
    assert lines(acme, "policy", "import", str(path), "--check") == ["no drift"]


def test_a_text_that_was_cut_off_shuts_nobody_out(acme: DataDir, tmp_path: Path) -> None:
    """Said so, it does; and going back brings tenants back with their keys."""
    path = tmp_path / "policy.yaml"
    for text in ("", "{}", "tenants: []"):
        path.write_text(text)
        with pytest.raises(BadOption, match=r"\$\.tenants"):
            run(acme, "policy", "import", str(path))
    lines(acme, "policy", "import", str(path), "--drop-all")
    lines(acme, "policy", "rollback", "1")
    assert [k["is_in_force"] for k in json.loads(lines(acme, *LIST)[0])] == [True]


def test_going_back_brings_keys_back_however_long_their_tenant_was_gone(acme: DataDir) -> None:
    """And nothing is done where nobody knows any more which they were."""
    access = LocalPolicies(acme.policies)
    gone = access.replace(
        PolicyDocument(version=1), expected=access.current().etag, action="import", why=""
    )
    for _ in range(25):
        gone = access.replace(gone, expected=access.current().etag, action="set", why="")
    lines(acme, "policy", "rollback", "1")
    assert [k["is_in_force"] for k in json.loads(lines(acme, *LIST)[0])] == [True]
    gone = access.replace(gone, expected=access.current().etag, action="import", why="")
    access.replace(gone, expected=access.current().etag, action="set", why="")
    (lost,) = acme.root.rglob(f"{gone.version:09d}.json")
    lost.unlink()
    with pytest.raises(BadOption, match="last keys of 'acme' are not kept"):
        run(acme, "policy", "rollback", "1")


def test_an_editor_revives_no_key(acme: DataDir, tmp_path: Path) -> None:
    lines(acme, "keys", "revoke", key_id(acme), "--tenant", "acme")
    editor = tmp_path / "editor.sh"
    editor.write_text('#!/bin/sh\nsed -i /revoked_at/d "$1"\n')
    editor.chmod(0o700)
    with pytest.raises(BadOption, match=r"keys\[0\].revoked_at") as raised:
        run(acme, "policy", "edit", VISUAL=str(editor))
    kept = Path(str(raised.value).rpartition(" ")[2])
    assert "tenant_id: acme" in kept.read_text()  # what was typed is not lost
    assert kept.parent.stat().st_mode & 0o777 == 0o700
    shutil.rmtree(kept.parent)


@pytest.mark.parametrize("broken", [b"{", b'{"version": -1}', b'{"version": 2, "tenants": 3}'])
def test_what_is_no_policy_is_repaired_as_the_runbook_says(acme: DataDir, broken: bytes) -> None:
    acme.policies.write_bytes(broken)
    (entry,) = json.loads(lines(acme, "policy", "history", "--json")[0])
    told = lines(acme, "policy", "rollback", str(entry["version"]))
    assert told == ["version 2: as version 1"]
    assert "gold" in lines(acme, "policy", "explain", "acme")[0]


LIST = ("keys", "list", "--tenant", "acme", "--json")


def test_a_repository_is_held_to_what_is_in_force(acme: DataDir, tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text("\n".join(lines(acme, "policy", "export")))
    assert lines(acme, "policy", "import", str(path), "--check") == ["no drift"]
    lines(acme, "policy", "set", "acme", "tier=free")
    with pytest.raises(Drifted, match=r"in 1 place$"):
        run(acme, "policy", "import", str(path), "--check")
    assert lines(acme, "policy", "import", str(path)) == [
        'tenants[acme].tier: "free" -> "gold"',
        "version 3",
    ]
    assert lines(acme, "policy", "import", str(path)) == ["nothing changed"]


def test_a_policy_comes_down_a_pipe(acme: DataDir) -> None:
    text = "\n".join(lines(acme, "policy", "export")).replace("gold", "free")
    command = ("policy", "import", "-", "--data-dir", str(acme.root))
    piped = CliRunner().invoke(app, command, input=text)
    assert piped.stdout.splitlines()[-1] == "version 2"
    assert "from standard input" in "".join(lines(acme, "policy", "history"))
    again = CliRunner().invoke(app, (*command, "--check"), input=text)
    assert (again.exit_code, again.stdout) == (0, "no drift\n")
    bad = CliRunner().invoke(app, command, input=b"\xff")
    assert str(bad.exception) == "standard input: cannot be read: it is no text in UTF-8"


def test_a_closed_standard_input_is_said_and_not_traced(acme: DataDir) -> None:
    command = (*PANDAL, "policy", "import", "-", "--data-dir", str(acme.root))
    closed = subprocess.run(
        ("sh", "-c", '"$@" <&-', "sh", *command), capture_output=True, text=True, check=False
    )
    assert closed.returncode == BadOption.exit_code
    assert closed.stderr == "pandal: standard input: cannot be read: it is closed\n"


def test_a_file_that_is_no_policy_is_named_by_the_path_of_its_fault(
    acme: DataDir, tmp_path: Path
) -> None:
    path = tmp_path / "policy.yaml"
    for text, complaint in (
        ("tenants: [{tenant_id: a, tier: free, tpm: 3}]", r"\$\.tenants\[0\]\.tpm"),
        ("tenants: [", "line 1"),
        ("[]", "members"),
    ):
        path.write_text(text)
        with pytest.raises(BadOption, match=complaint):
            run(acme, "policy", "import", str(path))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (b"[" * 500, "levels"),
        (b"a: " + b"{a: " * 500, "levels"),
        (b"tenants: &a\n- *a\n", "within itself"),
        (b'tenants:\n- tenant_id: "\\ud800"\n', "half a character"),
        (b"tenants: []\nversion: " + b"9" * 5_000, "a number"),
        (b"tenants: 2026-13-45\n", "a date"),
        (b"tenants: !!timestamp now\n", "a date"),
        (b"tenants: !!int ''\n", "a number"),
        (b"tenants: {[a]: 2}\n", "line 1"),
        (b"tenants: {null: 1}\n", "a name|tenants"),
        (b"tenants: !!python/none x\n", "line 1"),
        (b"tenants: \xff\n", "no text in UTF-8"),
    ],
    ids=lambda each: each[:30] if isinstance(each, bytes) else None,
)
def test_a_text_that_no_parser_can_take_is_refused_and_kept(
    acme: DataDir, tmp_path: Path, text: bytes, complaint: str
) -> None:
    path = tmp_path / "policy.yaml"
    path.write_bytes(text)
    for command in (("import",), ("import", "--check"), ("dry-run",)):
        with pytest.raises(BadOption, match=complaint):
            run(acme, "policy", *command, str(path))
    with pytest.raises(BadOption, match=f"({complaint}).*your text is kept in ") as caught:
        run(acme, "policy", "edit", VISUAL=f"cp {path}")
    kept = Path(str(caught.value).rpartition(" ")[2])
    assert kept.read_bytes() == text
    shutil.rmtree(kept.parent)


@pytest.mark.parametrize("editor", ["vi 'x", "/nowhere/vi"])
def test_an_editor_that_cannot_be_started_is_named(acme: DataDir, editor: str) -> None:
    with pytest.raises(BadOption, match=f"^{editor}: "):
        run(acme, "policy", "edit", VISUAL=editor)


def test_arguments_that_are_no_text_are_refused(acme: DataDir) -> None:
    where = ("--data-dir", str(acme.root))
    refused = pandal("policy", "set", "acme", "providers=\udcff", *where)
    assert_refused(refused, 2, "UTF-8", acme)


def test_an_editor_edits_it(acme: DataDir, tmp_path: Path) -> None:
    editor = tmp_path / "editor.sh"
    editor.write_text('#!/bin/sh\nsed -i s/gold/free/ "$1"\n')
    editor.chmod(0o700)
    told = lines(acme, "policy", "edit", VISUAL=str(editor))
    assert told == ['tenants[acme].tier: "gold" -> "free"', "version 2"]
    assert lines(acme, "policy", "edit", VISUAL="true") == ["nothing changed"]
    with pytest.raises(BadOption, match="nothing was stored"):
        run(acme, "policy", "edit", VISUAL="false")


def test_a_key_is_rotated_and_revoked(acme: DataDir) -> None:
    key = key_id(acme)
    rotated = json.loads(lines(acme, "keys", "rotate", key, "--tenant", "acme", "--json")[0])
    assert rotated["key_id"] == key
    (told,) = lines(acme, "keys", "list", "--tenant", "acme")
    assert rotated["api_key"][:14] in told
    assert "1 older secret still good" in told
    assert rotated["api_key"] not in acme.policies.read_text()
    lines(acme, "keys", "revoke", key, "--tenant", "acme")
    (told,) = lines(acme, "keys", "list", "--tenant", "acme")
    assert "revoked" in told
    with pytest.raises(BadOption, match="revoked or expired"):
        run(acme, "keys", "rotate", key, "--tenant", "acme")
    with pytest.raises(NotFound, match="no key"):
        run(acme, "keys", "revoke", "key-none", "--tenant", "acme")


def test_a_key_is_made_for_a_time_and_a_purpose(acme: DataDir) -> None:
    options = ("--name", "ci", "--expires-in", "90d", "--only-model", "m")
    lines(acme, "keys", "create", "--tenant", "acme", *options, "--json")
    key = json.loads(lines(acme, *LIST)[0])[1]
    assert (key["name"], key["models"], key["endpoints"]) == ("ci", ["m"], None)
    assert key["expires_at"] is not None
    with pytest.raises(BadOption, match="--expires-in"):
        run(acme, "keys", "create", "--tenant", "acme", "--expires-in", "soon")


@pytest.mark.parametrize(
    "arguments",
    [("get",), ("export",), ("history",), ("explain", "acme"), ("diff", "1")],
    ids=" ".join,
)
def test_what_is_not_there_is_no_empty_policy(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    with pytest.raises(NotFound, match=r"no policy at .*nowhere"):
        run(DataDir(tmp_path / "nowhere"), "policy", *arguments)


def test_a_key_that_would_be_over_at_once_is_not_made(acme: DataDir) -> None:
    for span in ("0d", "0s", "-1d"):
        with pytest.raises(BadOption, match="--expires-in"):
            run(acme, "keys", "create", "--tenant", "acme", "--expires-in", span)
    with pytest.raises(BadOption, match="models"):
        run(acme, "keys", "create", "--tenant", "acme", "--only-model", "")
    assert len(lines(acme, "keys", "list", "--tenant", "acme")) == 1


def test_keys_of_a_tenant_that_is_not_there_are_not_found(acme: DataDir) -> None:
    for arguments in (("list",), ("revoke", "key-1"), ("rotate", "key-1")):
        with pytest.raises(NotFound, match="no tenant 'nosuch'"):
            run(acme, "keys", *arguments, "--tenant", "nosuch")


def test_a_tenant_that_is_not_there_is_told_with_the_place(acme: DataDir) -> None:
    for arguments in (("get", "nosuch"), ("explain", "nosuch"), ("set", "nosuch", "weight=2")):
        with pytest.raises(NotFound, match=f"no tenant 'nosuch' at {acme.policies}"):
            run(acme, "policy", *arguments)


def test_a_rollback_that_changes_nothing_says_so(acme: DataDir) -> None:
    (told,) = lines(acme, "policy", "rollback", "1")
    assert told == "version 2: as version 1"
