"""What is compiled once is found by the next process, and by nobody under another's name."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kernels.vector_ir.compile_cache import compiling_into

# One function in a process of its own; it prints whether the code came from the cache.
PROGRAM = """
import sys
from pathlib import Path

from kernels.vector_ir.compile_cache import compiling_into
from kernels.vector_ir.function import compile_for, compiled_entry

@compiled_entry
def add(a, b):
    return a + b

with compiling_into(Path(sys.argv[1]) if len(sys.argv) > 1 else None):
    compile_for(add, 1, 2)
assert add(1, 2) == 3
print(sum(add.stats.cache_hits.values()))
"""

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Of the program, with its arguments."""
    program = tmp_path / "program.py"  # Numba keeps no code of functions without a file
    program.write_text(PROGRAM)

    def run(*arguments: object) -> "subprocess.Popen[str]":
        command = [sys.executable, str(program), *map(str, arguments)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    return run


def num_hits(process: "subprocess.Popen[str]") -> int:
    output, errors = process.communicate()
    assert process.returncode == 0, errors
    return int(output)


def test_two_processes_at_once_compile_once(start: Start, tmp_path: Path) -> None:
    both = [start(tmp_path), start(tmp_path)]
    assert sorted(num_hits(process) for process in both) == [0, 1]
    assert len(list(tmp_path.rglob("*.nbc"))) == 1


def test_nothing_is_kept_without_a_folder(start: Start) -> None:
    assert [num_hits(start()) for _ in range(2)] == [0, 0]


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError), compiling_into(tmp_path / "file" / "kernels"):
        pass


@pytest.mark.parametrize("damage", [b"", b"\0" * 100], ids=["empty", "zeros"])
def test_damaged_files_are_removed_and_said(start: Start, tmp_path: Path, damage: bytes) -> None:
    assert num_hits(start(tmp_path)) == 0
    for path in [*tmp_path.rglob("*.nbi"), *tmp_path.rglob("*.nbc")]:
        path.write_bytes(damage)
    _, errors = start(tmp_path).communicate()
    assert "EOFError" in errors or "UnpicklingError" in errors
    assert num_hits(start(tmp_path)) == 0
    assert num_hits(start(tmp_path)) == 1
