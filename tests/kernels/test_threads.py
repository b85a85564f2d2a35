"""Threads of a team share the units of a stage, and none goes on before all units are done."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from kernels.threads.stage import STAGE_BYTES, finish, take
from kernels.threads.team import ThreadTeam
from kernels.vector_ir.function import compile_for, compiled_entry
from kernels.vector_ir.levels import FeatureLevel
from kernels.vector_ir.specialization import Specialization

SPEC = Specialization(FeatureLevel.PORTABLE)
NUM_UNITS = 7
Counts = npt.NDArray[np.int64]


@compiled_entry
def sum_over_stages(
    _thread: int, _num_threads: int, spec: Any, stages: Counts, sums: Counts, stage_bytes: int
) -> None:
    """sums[i + 1, unit] = 1 + the sum of sums[i]: wrong if a unit of stage i was missing."""
    for index in range(len(sums) - 1):
        stage = stages.ctypes.data + index * stage_bytes
        num_done = 0
        unit = take(spec, stage, 1)
        while unit < NUM_UNITS:
            total = 1
            for other in range(NUM_UNITS):
                total += sums[index, other] % 1000
            sums[index + 1, unit] += total
            num_done += 1
            unit = take(spec, stage, 1)
        finish(spec, stage, num_done, NUM_UNITS)


def run_stages(team: ThreadTeam, num_stages: int) -> Counts:
    stages = np.zeros(num_stages * STAGE_BYTES // 8, np.int64)
    sums = np.zeros((num_stages + 1, NUM_UNITS), np.int64)
    arguments = (SPEC, stages, sums, STAGE_BYTES)
    compile_for(sum_over_stages, 0, 0, *arguments)
    team.run(sum_over_stages, *arguments)
    return sums


@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_each_unit_is_done_once_and_after_all_of_the_stage_before(num_threads: int) -> None:
    expected = [0]
    for _ in range(300):
        expected.append(1 + NUM_UNITS * (expected[-1] % 1000))
    with ThreadTeam(num_threads) as team:
        sums = run_stages(team, 300)
    np.testing.assert_array_equal(sums, np.repeat([expected], NUM_UNITS, axis=0).T)


def test_a_team_runs_again_and_ends_when_closed() -> None:
    with ThreadTeam(3) as team:
        for _ in range(20):
            assert run_stages(team, 2)[1].tolist() == [1] * NUM_UNITS
        threads = list(team.threads)
    assert threads
    assert not any(thread.is_alive() for thread in threads)


def test_an_error_of_a_worker_reaches_the_caller() -> None:
    def fail_in_workers(thread: int, _num_threads: int) -> None:
        if thread > 0:
            raise LookupError("of a worker")

    with ThreadTeam(2) as team, pytest.raises(LookupError, match="of a worker"):
        team.run(fail_in_workers)


def test_a_team_has_at_least_one_thread() -> None:
    with pytest.raises(ValueError, match="at least one thread"):
        ThreadTeam(0)
