"""``pandal up`` as a whole, over a model server that answers at once."""

import json
import os
import signal
import sqlite3
from pathlib import Path

import openai
import pytest

from tests.system.accounts import ledger_account, quota_account
from tests.system.conftest import StartFleet
from tests.system.fleet_process import (
    create_key,
    eventually,
    free_port,
    processes_of,
    run_pandal,
)


def client(url: str, api_key: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key=api_key, max_retries=0)


def ask(url: str, api_key: str, text: str) -> openai.types.CompletionUsage:
    with client(url, api_key) as sdk:
        answer = sdk.chat.completions.create(
            model="default", messages=[{"role": "user", "content": text}], max_tokens=5
        )
    assert answer.usage is not None
    return answer.usage


def test_once_shows_an_answer_and_its_ledger_line_and_exits(start_fleet: StartFleet) -> None:
    fleet = start_fleet("--once")
    assert fleet.wait() == 0, fleet.screen
    screen = fleet.screen
    for shown in (
        "word0 word1 ",
        "time to first token",
        "tokens/s",
        "x-ratelimit-remaining-tokens",
        "booked for tenant demo",
        "output_text",
        f"curl {fleet.url}/v1/chat/completions",
        f'OpenAI(base_url="{fleet.url}/v1"',
    ):
        assert shown in screen
    assert "\x1b" not in screen
    assert processes_of(fleet.data_dir) == []
    assert not (fleet.data_dir / "fleet.json").exists()


def test_a_second_fleet_on_the_data_dir_is_refused(start_fleet: StartFleet) -> None:
    first = start_fleet()
    first.wait_until_serving()
    second = start_fleet(data_dir=first.data_dir)
    assert second.wait() == 1
    assert f"(pid {first.process.pid})" in second.screen
    assert first.process.poll() is None


def test_a_second_fleet_on_the_port_is_refused(start_fleet: StartFleet, tmp_path: Path) -> None:
    first = start_fleet()
    first.wait_until_serving()
    second = start_fleet(data_dir=tmp_path / "other", port=first.port)
    assert second.wait() == 1
    assert f"port {first.port} is in use" in second.screen
    assert processes_of(second.data_dir) == []


def test_keys_quota_and_ledger_survive_a_restart(start_fleet: StartFleet) -> None:
    first = start_fleet()
    first.wait_until_serving()
    api_key = create_key(first.data_dir, "acme", "--tier", "gold")
    usage = ask(first.url, api_key, "three words here")
    assert first.terminate() == 0
    second = start_fleet(data_dir=first.data_dir)
    second.wait_until_serving()
    ask(second.url, api_key, "three words here")
    tenants = ("acme", "demo")
    eventually(lambda: ledger_account(second.data_dir, tenants).num_requests == 4, "not booked")
    assert ledger_account(second.data_dir, ["acme"]).num_tokens == 2 * usage.total_tokens
    assert quota_account(second.data_dir, tenants) == ledger_account(second.data_dir, tenants)


@pytest.mark.parametrize("signal_", [signal.SIGTERM, signal.SIGINT], ids=str)
def test_a_stop_signal_leaves_no_process(start_fleet: StartFleet, signal_: signal.Signals) -> None:
    fleet = start_fleet()
    fleet.wait_until_serving()
    assert len(processes_of(fleet.data_dir)) >= 5
    fleet.process.send_signal(signal_)
    assert fleet.process.wait(timeout=10) == 0
    assert processes_of(fleet.data_dir) == []
    assert "stopped" in fleet.screen


def test_a_stop_signal_during_the_start_leaves_no_process(start_fleet: StartFleet) -> None:
    fleet = start_fleet()
    eventually(lambda: (fleet.data_dir / "fleet.json").exists(), "nothing was started")
    fleet.process.send_signal(signal.SIGINT)
    assert fleet.process.wait(timeout=10) == 128 + signal.SIGINT
    assert processes_of(fleet.data_dir) == []


def test_a_killed_launcher_leaves_no_process(start_fleet: StartFleet) -> None:
    fleet = start_fleet()
    fleet.wait_until_serving()
    fleet.process.kill()
    fleet.process.wait()
    eventually(lambda: processes_of(fleet.data_dir) == [], "orphans are left")


def test_a_fleet_starts_again_right_after_its_launcher_was_killed(start_fleet: StartFleet) -> None:
    first = start_fleet()
    first.wait_until_serving()
    first.process.kill()
    first.process.wait()
    second = start_fleet("--once", data_dir=first.data_dir, port=first.port)
    assert second.wait() == 0, second.screen
    assert ledger_account(second.data_dir, ["demo"]).num_requests == 2


@pytest.mark.parametrize("name", ["gateway", "billing", "quota"])
def test_a_killed_child_is_started_again_and_said(start_fleet: StartFleet, name: str) -> None:
    fleet = start_fleet()
    fleet.wait_until_serving()
    api_key = create_key(fleet.data_dir, "acme")
    pid = fleet.child_pid(name)
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: fleet.child_pid(name) != pid, "it was not started again")
    assert f"{name} was ended by SIGKILL" in fleet.screen
    assert f"{name}.log" in fleet.screen

    def answers() -> bool:
        try:
            ask(fleet.url, api_key, "three words here")
        except openai.APIError:
            return False
        return True

    eventually(answers, "the fleet does not answer again")
    asked = quota_account(fleet.data_dir, ["acme"])
    eventually(lambda: ledger_account(fleet.data_dir, ["acme"]) == asked, "not booked")


def test_a_gateway_killed_right_after_an_answer_loses_nothing(start_fleet: StartFleet) -> None:
    fleet = start_fleet()
    fleet.wait_until_serving()
    api_key = create_key(fleet.data_dir, "acme")
    gateway = fleet.child_pid("gateway")
    usage = ask(fleet.url, api_key, "three words here")
    os.kill(gateway, signal.SIGKILL)
    eventually(lambda: ledger_account(fleet.data_dir, ["acme"]).num_requests == 1, "not booked")
    assert ledger_account(fleet.data_dir, ["acme"]).num_tokens == usage.total_tokens
    assert quota_account(fleet.data_dir, ["acme"]).num_tokens == usage.total_tokens


def test_an_answer_under_way_at_the_stop_is_booked(start_fleet: StartFleet) -> None:
    fleet = start_fleet()
    fleet.wait_until_serving()
    with client(fleet.url, create_key(fleet.data_dir, "acme")) as sdk:
        stream = sdk.chat.completions.create(
            model="default",
            messages=[{"role": "user", "content": "slowly please"}],
            max_tokens=20,
            stream=True,
        )
        next(stream)
        fleet.process.send_signal(signal.SIGTERM)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
    assert "word19" in text
    assert fleet.process.wait(timeout=10) == 0
    assert ledger_account(fleet.data_dir, ["acme"]).num_tokens == 22


def test_a_bill_is_readable_while_the_fleet_runs_and_after(start_fleet: StartFleet) -> None:
    fleet = start_fleet()
    fleet.wait_until_serving()
    running = run_pandal("bill", "demo", "--json", data_dir=fleet.data_dir)
    assert fleet.terminate() == 0
    stopped = run_pandal("bill", "demo", "--json", data_dir=fleet.data_dir)
    assert running.returncode == stopped.returncode == 0
    assert running.stdout == stopped.stdout
    bill = json.loads(running.stdout)
    assert (bill["tenant_id"], bill["num_requests"]) == ("demo", 1)


def test_a_tenant_with_a_key_and_no_request_has_an_empty_bill(start_fleet: StartFleet) -> None:
    fleet = start_fleet()
    fleet.wait_until_serving()
    create_key(fleet.data_dir, "acme")
    result = run_pandal("bill", "acme", data_dir=fleet.data_dir)
    assert result.returncode == 0
    assert "0 requests" in result.stdout


def test_a_kept_port_is_free_again_after_the_stop(start_fleet: StartFleet) -> None:
    port = free_port()
    assert start_fleet("--once", port=port).wait() == 0
    assert start_fleet("--once", port=port).wait() == 0


def test_no_key_nor_prompt_is_in_any_log(start_fleet: StartFleet) -> None:
    fleet = start_fleet()
    fleet.wait_until_serving()
    api_key = create_key(fleet.data_dir, "acme")
    ask(fleet.url, api_key, "xyzzy is the secret word")
    with pytest.raises(openai.AuthenticationError):
        ask(fleet.url, "sk-pandal-wrong-xyzzy", "hello")
    assert fleet.terminate() == 0
    logs = "".join(path.read_text() for path in (fleet.data_dir / "logs").iterdir())
    credentials = json.loads((fleet.data_dir / "credentials.json").read_text())
    for secret in (api_key, "xyzzy", credentials["key_pepper"], credentials["demo_api_key"]):
        assert secret not in logs
    with sqlite3.connect(fleet.data_dir / "ledger.db") as ledger:
        dump = "\n".join(ledger.iterdump())
    ledger.close()
    assert "xyzzy" not in dump
