"""``pandal ... | head``: a reader that has seen enough ends neither a fleet nor in a traceback."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.ports import free_port
from tests.system.fleet_process import MARK, PANDAL, FleetProcess, processes_of

NUM_LINES_READ = 3


def test_a_fleet_goes_on_and_stops_cleanly_after_its_reader(
    upstream_url: str, tmp_path: Path
) -> None:
    data_dir = tmp_path / "data"
    options = ("--once", "--data-dir", str(data_dir), "--dev-replica", upstream_url)
    with subprocess.Popen(
        (*PANDAL, "up", "--port", str(free_port()), *options),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, MARK: str(data_dir)},
    ) as fleet:
        assert fleet.stdout is not None
        assert fleet.stderr is not None
        for _ in range(NUM_LINES_READ):
            assert fleet.stdout.readline()
        fleet.stdout.close()
        assert fleet.stderr.read() == b""
    assert fleet.returncode == 0
    assert processes_of(data_dir) == []
    assert not (data_dir / "fleet.json").exists()


@pytest.fixture(scope="module")
def used_data_dir(upstream_url: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    data_dir = tmp_path_factory.mktemp("used") / "data"
    fleet = FleetProcess.start(data_dir, "--once", "--dev-replica", upstream_url)
    try:
        assert fleet.wait() == 0, fleet.screen
    finally:
        fleet.end()
    return data_dir


@pytest.mark.parametrize("option", ["--json", None], ids=str)
def test_a_bill_nobody_reads_is_no_failure(used_data_dir: Path, option: str | None) -> None:
    options = () if option is None else (option,)
    reading_end, writing_end = os.pipe()
    os.close(reading_end)
    try:
        result = subprocess.run(
            (*PANDAL, "bill", "demo", "--data-dir", str(used_data_dir), *options),
            stdout=writing_end,
            stderr=subprocess.PIPE,
            check=False,
        )
    finally:
        os.close(writing_end)
    assert (result.returncode, result.stderr) == (0, b"")


def test_a_complaint_nobody_reads_keeps_its_exit_code(tmp_path: Path) -> None:
    reading_end, writing_end = os.pipe()
    os.close(reading_end)
    try:
        result = subprocess.run(
            (*PANDAL, "bill", "demo", "--data-dir", str(tmp_path)), stderr=writing_end, check=False
        )
    finally:
        os.close(writing_end)
    assert result.returncode == 1
