"""A disk that is soon full."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(disk: Path, size: str) -> Iterator[Path]:
    """``disk`` is made and holds ``size`` ("128k"); skips the test where nobody may mount one."""
    disk.mkdir()
    mount = ("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(disk))
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs the right to mount a small tmpfs")
    try:
        yield disk
    finally:
        subprocess.run(("umount", "--lazy", str(disk)), check=True)
