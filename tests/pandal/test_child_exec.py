"""A killed launcher leaves no child: the kernel sees to it."""

import os
import select
import signal
import subprocess
import sys

import pytest

from pandal import child_exec
from pandal.processes import identify

WRAPPER = (sys.executable, "-I", "-S", child_exec.__file__)

# Starts one child as the supervisor does, says its pid, and waits to be killed.
PARENT = f"""
import os, signal, subprocess, sys
command = {WRAPPER!r} + (sys.argv[1], str(os.getpid()), sys.executable, "-I", "-c", sys.argv[2])
child = subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
signal.pause()
"""
CHILD = "import signal; print('up', flush=True); signal.pause()"


def wait_until_gone(pid: int) -> None:
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([fd], [], [], 30)[0], "the child outlived its parent"
    finally:
        os.close(fd)


@pytest.mark.parametrize("death_signal", [signal.SIGKILL, signal.SIGTERM], ids=str)
def test_a_child_dies_with_its_killed_parent(death_signal: signal.Signals) -> None:
    command = (sys.executable, "-I", "-c", PARENT, str(int(death_signal)), CHILD)
    with subprocess.Popen(command, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child_pid = int(parent.stdout.readline())
        assert identify(child_pid) is not None
        parent.kill()
        wait_until_gone(child_pid)


def test_a_child_whose_parent_is_gone_already_does_not_start() -> None:
    not_my_parent = os.getppid()
    command = (*WRAPPER, "9", str(not_my_parent), sys.executable, "-c", "print('started')")
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert result.stdout == ""


def test_the_program_takes_the_wrappers_place() -> None:
    source = "import os; print(os.getpid())"
    command = (*WRAPPER, "9", str(os.getpid()), sys.executable, "-I", "-c", source)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert int(child.stdout.read()) == child.pid
