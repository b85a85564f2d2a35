"""Starts and stops of ``pandal up``, over a model server that answers at once."""

import json
import signal
from pathlib import Path

import pytest

from tests.support.waiting import eventually
from tests.system.accounts import ledger_account, quota_account
from tests.system.conftest import StartFleet
from tests.system.fleet_process import FleetProcess, create_key, processes_of, run_pandal
from tests.system.sdk_client import ask, client


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
    ):
        assert shown in screen
    assert "try it" not in screen, "the fleet it would try is gone"
    assert "\x1b" not in screen
    assert processes_of(fleet.data_dir) == []
    assert not (fleet.data_dir / "fleet.json").exists()


def test_once_works_over_a_server_that_tells_no_usage(
    uncounted_upstream_url: str, tmp_path: Path
) -> None:
    fleet = FleetProcess.start(
        tmp_path / "data", "--once", *("--dev-replica", uncounted_upstream_url)
    )
    try:
        assert fleet.wait() == 0, fleet.screen
    finally:
        fleet.end()
    assert "not told by the server" in fleet.screen
    assert ledger_account(fleet.data_dir, ["demo"]).num_requests == 1


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
    eventually(
        lambda: quota_account(second.data_dir, tenants) == ledger_account(second.data_dir, tenants),
        "the quota was not told alike",
    )


@pytest.mark.parametrize("signal_", [signal.SIGTERM, signal.SIGINT], ids=str)
def test_a_stop_signal_leaves_no_process(start_fleet: StartFleet, signal_: signal.Signals) -> None:
    fleet = start_fleet()
    fleet.wait_until_serving()
    assert len(processes_of(fleet.data_dir)) >= 5
    fleet.process.send_signal(signal_)
    assert fleet.wait() == 0
    assert processes_of(fleet.data_dir) == []
    assert "stopped" in fleet.screen


def test_a_stop_signal_during_the_start_leaves_no_process(start_fleet: StartFleet) -> None:
    fleet = start_fleet()
    eventually(lambda: (fleet.data_dir / "fleet.json").exists(), "nothing was started")
    fleet.process.send_signal(signal.SIGINT)
    assert fleet.wait() == 128 + signal.SIGINT
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


def test_an_answer_under_way_at_the_stop_is_booked(start_fleet: StartFleet) -> None:
    fleet = start_fleet()
    fleet.wait_until_serving()
    with client(fleet.url, create_key(fleet.data_dir, "acme")) as sdk:
        stream = sdk.chat.completions.create(
            model="default",
            messages=[{"role": "user", "content": "slowly please"}],
            max_tokens=12,  # a second: a third of the drain
            stream=True,
        )
        next(stream)
        fleet.process.send_signal(signal.SIGTERM)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
    assert "word11" in text
    assert fleet.wait() == 0
    assert ledger_account(fleet.data_dir, ["acme"]).num_tokens == 14


def test_an_answer_longer_than_the_drain_is_cut_off_and_booked(start_fleet: StartFleet) -> None:
    fleet = start_fleet()
    fleet.wait_until_serving()
    with client(fleet.url, create_key(fleet.data_dir, "acme")) as sdk:
        stream = sdk.chat.completions.create(
            model="default",
            messages=[{"role": "user", "content": "slowly please"}],
            max_tokens=1_000,
            stream=True,
        )
        next(stream)
        assert fleet.terminate() == 0
        stream.close()
    booked = ledger_account(fleet.data_dir, ["acme"])
    assert booked.num_requests == 1
    assert 2 < booked.num_tokens < 1_000


def test_a_second_signal_does_not_wait_for_answers_under_way(start_fleet: StartFleet) -> None:
    fleet = start_fleet()
    fleet.wait_until_serving()
    with client(fleet.url, create_key(fleet.data_dir, "acme")) as sdk:
        stream = sdk.chat.completions.create(
            model="default",
            messages=[{"role": "user", "content": "slowly please"}],
            max_tokens=1_000,
            stream=True,
        )
        next(stream)
        fleet.process.send_signal(signal.SIGINT)
        eventually(lambda: "stopping" in fleet.screen, "the first signal went unheard")
        fleet.process.send_signal(signal.SIGINT)
        assert fleet.wait() == 0
        stream.close()
    assert processes_of(fleet.data_dir) == []


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
