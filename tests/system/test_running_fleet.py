"""What befalls a running fleet, over a model server that answers at once; one tenant a test."""

import http.client
import json
import logging
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import openai
import pytest

from contracts.metrics import GATEWAY_POLICY_LOST, GATEWAY_POLICY_REFUSED, GATEWAY_QUOTA_LOST
from pandal.datadir import DataDir
from tests.support.alerts import MINUTE_S, Rules, asked, rendered_rules, watch
from tests.support.promql import fires
from tests.support.waiting import eventually
from tests.system.accounts import accounts_agree, ledger_account, quota_account
from tests.system.conftest import StartFleet
from tests.system.fleet_process import FleetProcess, create_key, processes_of, run_pandal
from tests.system.sdk_client import answers, ask

logger = logging.getLogger(__name__)


@pytest.fixture(scope="module")
def fleet(upstream_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FleetProcess]:
    data_dir = tmp_path_factory.mktemp("running") / "data"
    process = FleetProcess.start(data_dir, "--dev-replica", upstream_url)
    try:
        process.wait_until_serving()
        yield process
    finally:
        process.end()


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> Rules:
    return rendered_rules(tmp_path_factory.mktemp("helm"))


def test_a_second_fleet_on_the_data_dir_is_refused(
    fleet: FleetProcess, start_fleet: StartFleet
) -> None:
    second = start_fleet(data_dir=fleet.data_dir)
    assert second.wait() == 1
    assert f"(pid {fleet.process.pid})" in second.screen
    assert fleet.process.poll() is None


def test_a_second_fleet_on_the_port_is_refused(
    fleet: FleetProcess, start_fleet: StartFleet, tmp_path: Path
) -> None:
    second = start_fleet(data_dir=tmp_path / "other", port=fleet.port)
    assert second.wait() == 1
    assert f"port {fleet.port} is in use" in second.screen
    assert processes_of(second.data_dir) == []


def test_a_tenant_with_a_key_and_no_request_has_an_empty_bill(fleet: FleetProcess) -> None:
    create_key(fleet.data_dir, "idle")
    result = run_pandal("bill", "idle", data_dir=fleet.data_dir)
    assert result.returncode == 0
    assert "0 requests" in result.stdout


def test_the_fleet_is_watched_and_found_sound(fleet: FleetProcess) -> None:
    watched = run_pandal("top", "--once", "--interval", "0.2", data_dir=fleet.data_dir)
    assert watched.returncode == 0, watched.stderr
    assert "requests/s" in watched.stdout
    assert "demo" in watched.stdout
    examined = run_pandal("doctor", "--json", data_dir=fleet.data_dir)
    assert examined.returncode == 0, examined.stdout
    found = {(f["about"], f["level"]) for f in json.loads(examined.stdout)}
    parts = ("valkey", "replicas", "disk", "gateway", "admin API")
    assert {(part, "ok") for part in parts} <= found


def test_its_admin_api_is_found_by_whoever_owns_the_data(fleet: FleetProcess) -> None:
    token_path = fleet.data_dir / "admin-token"
    assert token_path.stat().st_mode & 0o777 == 0o600
    token = token_path.read_text().strip()
    assert str(token_path) in fleet.screen
    assert token not in fleet.screen
    url = fleet.state()["admin_url"]
    told = run_pandal("policy", "explain", "demo", "--admin", url, data_dir=fleet.data_dir)
    assert "TPM because tier standard" in told.stdout, told.stderr
    other = run_pandal("policy", "get", "--admin", fleet.url, data_dir=fleet.data_dir)
    assert (other.returncode, "PANDAL_ADMIN_TOKEN" in other.stderr) == (2, True)
    logs = (fleet.data_dir / "logs").glob("*.log")
    assert not any(token in path.read_text("utf-8", "replace") for path in logs)


def test_a_model_that_nobody_serves_is_told(fleet: FleetProcess) -> None:
    create_key(fleet.data_dir, "speller")
    terms = ("speller", "weight=2", "--model")
    wrong = run_pandal("policy", "set", *terms, "default", data_dir=fleet.data_dir)
    assert (wrong.returncode, "no replica serves 'default'" in wrong.stderr) == (0, True)
    served = str(fleet.state()["model"])
    right = run_pandal("policy", "set", *terms, served, data_dir=fleet.data_dir)
    assert (right.returncode, right.stderr) == (0, "")
    alias = run_pandal(
        "policy", "explain", "speller", "--model", "default", data_dir=fleet.data_dir
    )
    assert (alias.returncode, alias.stderr) == (0, "")
    missing = run_pandal("usage", "nosuch", data_dir=fleet.data_dir)
    assert (missing.returncode, "unknown tenant 'nosuch'" in missing.stderr) == (1, True)


def test_a_budget_reaches_the_limiter_while_it_admits(fleet: FleetProcess) -> None:
    """Within 5 s, says the log where nothing else runs: ``--log-cli-level=info``."""
    key = create_key(fleet.data_dir, "spender")
    ask(fleet.url, key, "three words here")
    told = run_pandal("policy", "set", "spender", "tokens_per_day=1", data_dir=fleet.data_dir)
    assert told.returncode == 0, told.stderr
    began_s = time.monotonic()
    eventually(lambda: refusal(fleet.url, key) == "tokens_limit_exceeded", "the budget to hold")
    logger.info("a hard budget held %.2f s after it was set", time.monotonic() - began_s)


def refusal(url: str, api_key: str) -> str | None:
    try:
        ask(url, api_key, "three words here")
    except openai.APIStatusError as exc:
        return exc.code
    return None


def test_what_is_printed_works_as_pasted(fleet: FleetProcess) -> None:
    printed = fleet.screen.split("try it: curl\n")[1].split("serving on")[0]
    curl, sdk = printed.split("try it: Python\n")
    commands = [(sys.executable, "-c", sdk)]
    if shutil.which("curl") is not None:
        commands.append(("sh", "-c", curl))
    for command in commands:
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr
        assert "word0 word1" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (("bill", "nobody"), 1, "unknown tenant 'nobody'"),
        (("bill", "No Body"), 2, "tenant id"),
        (("bill", "demo", "--month", "2026-13"), 2, "2026-13"),
        (("keys", "create", "--tenant", "acme", "--tpm", "0"), 2, "--tpm"),
        (("keys", "create", "--tenant", "acme", "--rpm", "10000000000"), 2, "--rpm"),
    ],
    ids=str,
)
def test_a_wrong_question_gets_one_line(
    fleet: FleetProcess, arguments: tuple[str, ...], code: int, complaint: str
) -> None:
    result = run_pandal(*arguments, data_dir=fleet.data_dir)
    assert result.returncode == code
    assert result.stdout == ""
    assert complaint in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_raised_limit_takes_effect_while_the_fleet_runs(fleet: FleetProcess) -> None:
    api_key = create_key(fleet.data_dir, "growing", "--rpm", "1")
    ask(fleet.url, api_key, "three words here")
    assert not answers(fleet.url, api_key)
    create_key(fleet.data_dir, "growing", "--rpm", "1000")
    assert answers(fleet.url, api_key)


def test_clients_that_do_not_wait_raise_their_alert(fleet: FleetProcess, rules: Rules) -> None:
    """docs/runbooks/PandalRetryStorm.md"""
    api_key = create_key(fleet.data_dir, "stormy", "--rpm", "5")
    found = watch(fleet.port)
    found.hold(10 * MINUTE_S)
    assert not fires(rules["PandalRetryStorm"], found.timeline)
    for _ in range(2):
        assert ask_again_and_again(fleet.port, api_key, times=350) > 340
        found.hold(4 * MINUTE_S)
    assert fires(rules["PandalRetryStorm"], found.timeline)


def ask_again_and_again(port: int, api_key: str, times: int) -> int:
    """How often it was refused for it."""
    body = json.dumps({"model": "default", "messages": [{"role": "user", "content": "now"}]})
    headers = {"content-type": "application/json", "authorization": f"Bearer {api_key}"}
    num_refused = 0
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        for _ in range(times):
            connection.request("POST", "/v1/chat/completions", body, headers)
            answer = connection.getresponse()
            answer.read()
            num_refused += answer.status == 429
    return num_refused


def test_a_quota_store_that_hangs_raises_its_alert(fleet: FleetProcess, rules: Rules) -> None:
    """docs/runbooks/PandalQuotaStoreLost.md"""
    api_key = create_key(fleet.data_dir, "hanging")
    alert, found, store = rules["PandalQuotaStoreLost"], watch(fleet.port), fleet.child_pid("quota")
    found.hold(5 * MINUTE_S)
    assert not fires(alert, found.timeline)

    def is_lost() -> bool:
        answers(fleet.url, api_key)  # the gateway's share, or refused
        return is_told(fleet, GATEWAY_QUOTA_LOST)

    os.kill(store, signal.SIGSTOP)
    try:
        eventually(is_lost, "the gateway to miss it")
        found.hold(3 * MINUTE_S)
        assert fires(alert, found.timeline)
    finally:
        os.kill(store, signal.SIGCONT)
    eventually(lambda: not is_lost(), "the gateway to find it again")
    found.hold(MINUTE_S)
    assert not fires(alert, found.timeline)
    eventually(lambda: accounts_agree(fleet.data_dir, "hanging"), "not booked alike")


def test_a_policy_that_is_no_good_raises_its_alert(fleet: FleetProcess, rules: Rules) -> None:
    """docs/runbooks/PandalPolicyRefused.md"""
    api_key = create_key(fleet.data_dir, "careful")
    alert, found, path = rules["PandalPolicyRefused"], watch(fleet.port), policy_path(fleet)
    found.hold(5 * MINUTE_S)
    assert not fires(alert, found.timeline)
    document = json.loads(path.read_bytes())
    document["tenants"][0]["tier"] = "platinum"
    path.write_text(json.dumps(document))
    eventually(lambda: is_told(fleet, GATEWAY_POLICY_REFUSED), "the gateway to refuse it")
    found.hold(3 * MINUTE_S)
    assert fires(alert, found.timeline)
    log = fleet.data_dir / "logs" / "gateway.log"
    eventually(lambda: "$.tenants[0].tier" in log.read_text(), "the log to say where")
    assert answers(fleet.url, api_key)
    told = run_pandal("policy", "rollback", str(document["version"]), data_dir=fleet.data_dir)
    assert told.returncode == 0, told.stderr
    eventually(lambda: not is_told(fleet, GATEWAY_POLICY_REFUSED), "the gateway to take it")
    found.hold(MINUTE_S)
    assert not fires(alert, found.timeline)
    assert answers(fleet.url, api_key)


def test_a_policy_store_that_is_away_raises_its_alert(fleet: FleetProcess, rules: Rules) -> None:
    """docs/runbooks/PandalPolicyStoreLost.md"""
    api_key = create_key(fleet.data_dir, "patient")
    alert, found, path = rules["PandalPolicyStoreLost"], watch(fleet.port), policy_path(fleet)
    found.hold(8 * MINUTE_S)
    assert not fires(alert, found.timeline)
    away = path.rename(path.with_name("away"))
    try:
        eventually(lambda: is_told(fleet, GATEWAY_POLICY_LOST), "the gateway to miss it")
        found.hold(7 * MINUTE_S)
        assert fires(alert, found.timeline)
        assert answers(fleet.url, api_key)
    finally:
        away.rename(path)
    eventually(lambda: not is_told(fleet, GATEWAY_POLICY_LOST), "the gateway to find it again")
    found.hold(MINUTE_S)
    assert not fires(alert, found.timeline)


def policy_path(fleet: FleetProcess) -> Path:
    return DataDir(fleet.data_dir).policies


def is_told(fleet: FleetProcess, gauge: str) -> bool:
    return f"\n{gauge} 1" in asked(fleet.port, "GET", "/metrics").decode()


@pytest.mark.parametrize("name", ["gateway", "billing", "quota", "response-cache"])
def test_a_killed_child_is_started_again_and_said(fleet: FleetProcess, name: str) -> None:
    tenant = f"kill-{name}"
    api_key = create_key(fleet.data_dir, tenant)
    pid = fleet.child_pid(name)
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: fleet.child_pid(name) != pid, "it was not started again")
    eventually(lambda: f"{name} was ended by SIGKILL" in fleet.screen, "it was not said")
    eventually(lambda: f"{name}.log" in fleet.screen, "it was not said where more is")
    eventually(lambda: answers(fleet.url, api_key), "the fleet does not answer again")
    eventually(lambda: accounts_agree(fleet.data_dir, tenant), "not booked alike")


def test_a_gateway_killed_right_after_an_answer_loses_nothing(fleet: FleetProcess) -> None:
    api_key = create_key(fleet.data_dir, "lucky")
    gateway = fleet.child_pid("gateway")
    usage = ask(fleet.url, api_key, "three words here")
    os.kill(gateway, signal.SIGKILL)
    eventually(lambda: ledger_account(fleet.data_dir, ["lucky"]).num_requests == 1, "not booked")
    assert ledger_account(fleet.data_dir, ["lucky"]).num_tokens == usage.total_tokens
    eventually(lambda: fleet.child_pid("gateway") != gateway, "it was not started again")
    # A store that took longer than its deadline is told by whoever finds the dead one's events.
    eventually(lambda: accounts_agree(fleet.data_dir, "lucky"), "the quota was not told")
    assert quota_account(fleet.data_dir, ["lucky"]).num_tokens == usage.total_tokens
    eventually(lambda: answers(fleet.url, api_key), "the fleet does not answer again")
    eventually(lambda: accounts_agree(fleet.data_dir, "lucky"), "not booked alike")


def test_the_books_agree_after_all_that(fleet: FleetProcess) -> None:
    """Over a server that keeps no journal: what gateways numbered, and what the quota was told."""
    audited = run_pandal("audit", "--recover", "--json", data_dir=fleet.data_dir)
    report = json.loads(audited.stdout)
    assert (audited.returncode, report["findings"]) == (0, [])
    assert report["accounts"]["lucky"]["quota"] == report["accounts"]["lucky"]["ledger"]


def test_no_key_nor_prompt_is_in_any_log(fleet: FleetProcess) -> None:
    api_key = create_key(fleet.data_dir, "secretive")
    ask(fleet.url, api_key, "xyzzy is the secret word")
    with pytest.raises(openai.AuthenticationError):
        ask(fleet.url, "sk-pandal-wrong-xyzzy", "hello")
    eventually(lambda: ledger_account(fleet.data_dir, ["secretive"]).num_requests == 1, "unbooked")
    logs = "".join(path.read_text() for path in (fleet.data_dir / "logs").iterdir())
    credentials = json.loads((fleet.data_dir / "credentials.json").read_text())
    for secret in (api_key, "xyzzy", credentials["key_pepper"], credentials["demo_api_key"]):
        assert secret not in logs
    ledger = sqlite3.connect(fleet.data_dir / "ledger.db")
    dump = "\n".join(ledger.iterdump())
    ledger.close()
    assert "secretive" in dump
    assert "xyzzy" not in dump
