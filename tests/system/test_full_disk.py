"""The disk under a running fleet fills up: refused in time, and served again when there is room."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.small_disk import small_disk
from tests.support.waiting import eventually
from tests.system.accounts import ledger_account, quota_account
from tests.system.conftest import StartFleet
from tests.system.fleet_process import create_key
from tests.system.sdk_client import answers, ask


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", "220m") as disk:
        yield disk


def test_a_full_disk_refuses_requests_until_there_is_room(
    disk: Path, start_fleet: StartFleet
) -> None:
    fleet = start_fleet(data_dir=disk / "data")
    fleet.wait_until_serving()
    api_key = create_key(fleet.data_dir, "acme")
    ask(fleet.url, api_key, "three words here")
    ballast = disk / "ballast"
    fill(ballast)
    # The page that the spool has begun still takes some events.
    eventually(lambda: not answers(fleet.url, api_key), "a full disk refused nothing")
    ballast.unlink()
    eventually(lambda: answers(fleet.url, api_key), "the fleet does not answer again")
    eventually(
        lambda: ledger_account(fleet.data_dir, ["acme"]) == quota_account(fleet.data_dir, ["acme"]),
        "quota and ledger never agreed",
    )
    assert fleet.process.poll() is None


def fill(ballast: Path) -> None:
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(1 << 16))
