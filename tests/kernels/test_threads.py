"""Threads of a team are in one function at the same time and wait for each other inside it."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from kernels.threads.barrier import take, wait
from kernels.threads.team import ThreadTeam
from kernels.vector_ir.function import compiled_entry
from kernels.vector_ir.levels import FeatureLevel
from kernels.vector_ir.specialization import Specialization

SPEC = Specialization(FeatureLevel.PORTABLE)
NUM_ROUNDS = 200


@compiled_entry
def take_in_rounds(
    thread: int,
    num_threads: int,
    barrier: int,
    spec: Any,
    counter: npt.NDArray[np.int64],
    seen: npt.NDArray[np.int64],
) -> None:
    for index in range(len(seen)):
        if thread == 0:
            seen[index] = counter[0]
        wait(spec, barrier, num_threads)
        take(spec, counter.ctypes.data, 1)
        wait(spec, barrier, num_threads)


def compile_for_one_thread() -> None:
    with ThreadTeam(1) as team:
        team.run(take_in_rounds, SPEC, np.zeros(1, np.int64), np.zeros(1, np.int64))


@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_nobody_passes_a_barrier_before_all_have_come(num_threads: int) -> None:
    compile_for_one_thread()
    counter, seen = np.zeros(1, np.int64), np.zeros(NUM_ROUNDS, np.int64)
    with ThreadTeam(num_threads) as team:
        team.run(take_in_rounds, SPEC, counter, seen)
    np.testing.assert_array_equal(seen, num_threads * np.arange(NUM_ROUNDS))


def test_a_team_runs_again_and_ends_when_closed() -> None:
    compile_for_one_thread()
    with ThreadTeam(3) as team:
        for _ in range(20):
            counter, seen = np.zeros(1, np.int64), np.zeros(2, np.int64)
            team.run(take_in_rounds, SPEC, counter, seen)
            assert counter[0] == 6
        threads = list(team.threads)
    assert threads
    assert not any(thread.is_alive() for thread in threads)


def test_an_error_of_a_worker_reaches_the_caller() -> None:
    def fail_in_workers(thread: int, _num_threads: int, _barrier: int) -> None:
        if thread > 0:
            raise LookupError("of a worker")

    with ThreadTeam(2) as team, pytest.raises(LookupError, match="of a worker"):
        team.run(fail_in_workers)


def test_a_team_has_at_least_one_thread() -> None:
    with pytest.raises(ValueError, match="at least one thread"):
        ThreadTeam(0)
