"""What the interpreter cannot show: that Triton makes machine code for a GPU of each kernel."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
ROOT = Path(__file__).parents[2]
KERNELS = [
    f"{line.split('(')[0].removeprefix('def ')}"
    for file in sorted((ROOT / "kernels").glob("*/*kernel.py"))
    for line in file.read_text().splitlines()
    if line.startswith("def ") and line.split("(")[0].endswith("_kernel")
]


def test_every_kernel_compiles_for_hopper(tmp_path: Path) -> None:
    environment = os.environ | {"TRITON_CACHE_DIR": str(tmp_path), "TRITON_INTERPRET": "0"}
    command = [sys.executable, "-m", "tests.kernels.hopper_compilation"]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    compiled = {line.split()[0] for line in done.stdout.splitlines()}
    assert compiled == set(KERNELS)
