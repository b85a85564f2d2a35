"""Providers that a policy names: told where the fleet's gateway has none of that name."""

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pandal.cli import app
from pandal.datadir import DataDir
from pandal.errors import Drifted
from pandal.fleet import providers_named
from pandal.fleet_record import FleetState, write_fleet_state
from pandal.keys import KeyRequest, create_key
from pandal.processes import identify

_FALLBACKS = "  fallbacks:\n  - model: m\n    steps:\n    - model: n\n      provider: chained\n"


def run_fleet(data_dir: DataDir, providers: tuple[str, ...] | None) -> None:
    this = identify(os.getpid())
    assert this is not None
    state = FleetState(
        launcher=this,
        gateway_url="http://127.0.0.1:1",
        quota_url="unix:///quota.sock",
        ledger_url="sqlite:////ledger.db",
        policy_file=str(data_dir.policies),
        model="m",
        replica_urls={},
        children={},
        providers=providers,
    )
    write_fleet_state(data_dir, state)


def policy(*arguments: str, data_dir: DataDir) -> tuple[str, str]:
    """(what it printed, what it warned of)"""
    called = ("policy", *arguments, "--data-dir", str(data_dir.root))
    result = CliRunner().invoke(app, called)
    if isinstance(result.exception, Drifted):
        assert "--check" in arguments
    elif result.exception is not None:
        raise result.exception
    return result.stdout, result.stderr


@pytest.fixture
def proposed(data_dir: DataDir, tmp_path: Path) -> Path:
    create_key(data_dir, KeyRequest("acme", tier="gold"))
    text, _ = policy("export", data_dir=data_dir)
    path = tmp_path / "policy.yaml"
    line = f"  tier: gold\n  providers: [openai, opnai]\n{_FALLBACKS}"
    path.write_text(text.replace("  tier: gold\n", line))
    return path


def test_a_name_that_the_gateway_does_not_have_is_told(data_dir: DataDir, proposed: Path) -> None:
    run_fleet(data_dir, ("openai",))
    _, checked = policy("import", str(proposed), "--check", data_dir=data_dir)
    _, warned = policy("import", str(proposed), data_dir=data_dir)
    expected = [
        f"pandal: warning: the gateway has no provider {name!r}; it has: openai"
        for name in ("chained", "opnai")
    ]
    assert warned.splitlines() == checked.splitlines() == expected
    told, _ = policy("explain", "acme", data_dir=data_dir)
    assert "providers openai, opnai because tenant acme" in told.splitlines()
    assert policy("set", "acme", "tier=free", data_dir=data_dir)[1] == "", "told once"


def test_what_nobody_knows_is_not_warned_of(data_dir: DataDir, proposed: Path) -> None:
    run_fleet(data_dir, None)
    assert policy("import", str(proposed), data_dir=data_dir)[1] == ""


def test_a_fleets_providers_are_those_of_its_variable() -> None:
    assert providers_named({}) == ()
    assert providers_named({"GATEWAY_PROVIDERS": '[{"name": "a", "url": "x"}]'}) == ("a",)
    assert providers_named({"GATEWAY_PROVIDERS": "a"}) is None
