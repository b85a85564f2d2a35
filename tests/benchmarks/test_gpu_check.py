"""The script that checks a GPU runs from end to end, tiny, where there is none."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.kernels.triton_runs import DEVICE

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(DEVICE == "cuda", reason="on a GPU it takes minutes and is run by hand")
@pytest.mark.timeout(600)
def test_every_section_reports_its_rows() -> None:
    command = [sys.executable, "-m", "benchmarks.gpu_check", "--tiny"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    table = done.stdout.split("what it was held against")[1]
    for row in (
        "0 failed", "a large copy", "rms_norm", "kv_write", "decode attention", "block_copy",
        "sampling 1, top-k", "4-bit down", "float8 down", "moe of", "lora of", "of the roofline",
        "prefill of", "by graphs, launched ahead", "ours beside theirs",
    ):  # fmt: skip
        assert row in table, row
    assert "0 of 1 targets short (tiny: times mean nothing)" in table
