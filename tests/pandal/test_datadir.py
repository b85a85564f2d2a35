import os
import subprocess
import sys
from pathlib import Path

import pytest

from pandal.datadir import DataDir
from pandal.errors import PreflightFailed
from pandal.fleet_record import (
    FleetState,
    clear_leftovers,
    read_fleet_state,
    running_fleet,
    write_fleet_state,
)
from pandal.private_file import exclusive
from pandal.processes import ProcessId, identify, is_alive, wait_gone_or_kill


def state(launcher: ProcessId, **children: ProcessId) -> FleetState:
    return FleetState(
        launcher=launcher,
        gateway_url="http://127.0.0.1:8080",
        quota_url="unix:///quota.sock",
        ledger_url="sqlite:////ledger.db",
        policy_file="/policies.json",
        model="tiny",
        replica_urls={},
        children=children,
    )


def this_process() -> ProcessId:
    process = identify(os.getpid())
    assert process is not None
    return process


def test_sockets_of_a_deep_data_dir_have_a_short_private_home(tmp_path: Path) -> None:
    deep = DataDir(tmp_path / ("x" * 60) / ("y" * 60))
    deep.create()
    assert len(os.fsencode(deep.sockets / "response-cache.sock")) <= 107
    assert deep.sockets.stat().st_mode & 0o777 == 0o700
    assert deep.sockets == DataDir(deep.root).sockets
    assert deep.sockets != DataDir(deep.root / "z").sockets
    deep.sockets.rmdir()


def test_a_link_in_the_place_of_the_sockets_folder_is_refused(tmp_path: Path) -> None:
    """In a shared temporary directory anyone may put one there."""
    deep = DataDir(tmp_path / ("x" * 60) / ("y" * 60))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    deep.sockets.symlink_to(elsewhere)
    try:
        with pytest.raises(PreflightFailed, match="not a folder of its own"):
            deep.create()
    finally:
        deep.sockets.unlink()


def test_a_sockets_folder_that_others_may_write_to_is_closed_to_them(tmp_path: Path) -> None:
    deep = DataDir(tmp_path / ("x" * 60) / ("y" * 60))
    deep.sockets.mkdir()
    deep.sockets.chmod(0o777)
    try:
        deep.create()
        assert deep.sockets.stat().st_mode & 0o777 == 0o700
    finally:
        deep.sockets.rmdir()


def test_logs_may_be_kept_elsewhere(tmp_path: Path) -> None:
    directory = DataDir(tmp_path / "pandal")
    directory.root.mkdir()
    (tmp_path / "disk").mkdir()
    directory.logs.symlink_to(tmp_path / "disk")
    directory.create()
    assert directory.log("gateway").parent.samefile(tmp_path / "disk")


def test_a_lock_is_free_again_after_its_holder(data_dir: DataDir) -> None:
    refused = pytest.raises(PreflightFailed, match=f"pid {os.getpid()}")
    with exclusive(data_dir), refused, exclusive(data_dir):
        pass
    with exclusive(data_dir):
        pass


def test_a_fleet_runs_while_its_launcher_lives(data_dir: DataDir) -> None:
    written = state(this_process())
    write_fleet_state(data_dir, written)
    assert running_fleet(data_dir) == written


def test_a_reused_pid_is_not_the_launcher(data_dir: DataDir) -> None:
    me = this_process()
    write_fleet_state(data_dir, state(ProcessId(pid=me.pid, start_ticks=me.start_ticks - 1)))
    assert running_fleet(data_dir) is None


def test_leftovers_of_a_killed_launcher_are_ended_before_a_new_start(data_dir: DataDir) -> None:
    with subprocess.Popen((sys.executable, "-c", "import signal; signal.pause()")) as leftover:
        process = identify(leftover.pid)
        assert process is not None
        write_fleet_state(data_dir, state(this_process(), quota=process))
        clear_leftovers(data_dir, patience_s=0.1)
        assert not is_alive(process)
    assert read_fleet_state(data_dir) is None


def test_a_leftover_that_ends_by_itself_is_waited_for(data_dir: DataDir) -> None:
    with subprocess.Popen((sys.executable, "-c", "input()"), stdin=subprocess.PIPE) as leftover:
        process = identify(leftover.pid)
        assert process is not None
        assert leftover.stdin is not None
        leftover.stdin.write(b"\n")
        leftover.stdin.close()
        wait_gone_or_kill(process, patience_s=30)
        assert not is_alive(process)
    assert leftover.returncode == 0


def test_a_process_that_only_has_the_leftovers_pid_is_let_live() -> None:
    me = this_process()
    wait_gone_or_kill(ProcessId(pid=me.pid, start_ticks=me.start_ticks - 1), patience_s=0)


def test_a_leftover_that_is_gone_already_is_no_error() -> None:
    with subprocess.Popen((sys.executable, "-c", "input()"), stdin=subprocess.PIPE) as leftover:
        process = identify(leftover.pid)
        assert process is not None
    wait_gone_or_kill(process, patience_s=0)


def test_a_state_file_of_another_version_is_cleared(data_dir: DataDir) -> None:
    data_dir.fleet.write_text('{"type": "fleet.v0"}')
    clear_leftovers(data_dir)
    assert not data_dir.fleet.exists()
