import os
from pathlib import Path

import pytest

from replica.engine.cores import num_physical_cores, num_usable_cores


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_two_cpus_of_one_core_count_once(tmp_path: Path) -> None:
    for cpu, siblings in {0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"}.items():
        name = f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        write(tmp_path / name, siblings + "\n")
    assert num_physical_cores({0, 1, 2, 3}, tmp_path) == 2
    assert num_physical_cores({0, 2}, tmp_path) == 1
    assert num_physical_cores({0, 1, 7}, tmp_path) == 3  # of a CPU that says nothing: its own


def test_without_any_limit_it_is_the_cores_there_are(tmp_path: Path) -> None:
    assert num_usable_cores(tmp_path) == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"": "100000 100000"}, 1),
        ({"pod": "50000 100000"}, 1),
        ({"": "max 100000", "pod/box": "150000 100000"}, 2),
        ({"other": "100000 100000"}, None),
    ],
    ids=str,
)
def test_the_least_of_a_groups_and_its_parents_quotas_counts(
    limits: dict[str, str], expected: int | None, tmp_path: Path
) -> None:
    write(tmp_path / "proc/self/cgroup", "0::/pod/box\n")
    for group, limit in limits.items():
        write(tmp_path / "sys/fs/cgroup" / group / "cpu.max", limit + "\n")
    num_cpus = len(os.sched_getaffinity(0))
    assert num_usable_cores(tmp_path) == min(expected or num_cpus, num_cpus)
