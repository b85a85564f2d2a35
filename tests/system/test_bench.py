"""The load generator against the whole local fleet: its counts are the ledger's."""

import json

from tests.support.waiting import eventually
from tests.system.accounts import Account, ledger_account
from tests.system.conftest import StartFleet
from tests.system.fleet_process import run_pandal


def test_what_the_generator_counts_is_what_the_ledger_bills(start_fleet: StartFleet) -> None:
    fleet = start_fleet()
    fleet.wait_until_serving()
    tenants = ("demo",)
    eventually(lambda: ledger_account(fleet.data_dir, tenants).num_requests == 1, "no demo request")
    before = ledger_account(fleet.data_dir, tenants)
    result = run_pandal(
        *("bench", "--rate", "40", "--requests", "24", "--workload", "chat", "--json"),
        *("--set", "pause_s=0.01", "--set", "system_tokens=20"),
        data_dir=fleet.data_dir,
    )
    assert result.returncode == 0, result.stderr
    total = json.loads(result.stdout)["total"]
    assert total["outcomes"] == {"completed": 24}
    tokens = total["tokens"]
    counted = Account(24, tokens["prompt_tokens"] + tokens["completion_tokens"])
    eventually(
        lambda: ledger_account(fleet.data_dir, tenants) - before == counted,
        "the ledger never agreed with the generator",
    )
