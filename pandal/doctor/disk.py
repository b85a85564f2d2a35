"""Room for what must not be lost: events that wait for billing, ledger, policy and history."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pandal.doctor.finding import Finding, failure, fine, warning

_ABOUT: Final = "disk"
_FEW_BYTES, _TOO_FEW_BYTES = 2_000_000_000, 200_000_000
_FEW_FILES: Final = 1_000


def disk_findings(folder: Path) -> Iterator[Finding]:
    try:
        free_bytes = shutil.disk_usage(folder).free
        num_files = os.statvfs(folder).f_favail
    except OSError as exc:
        yield failure(_ABOUT, f"{folder}: {exc.strerror}", "name the folder with --data-dir")
        return
    fact = f"{free_bytes / 1e9:.1f} GB are free for {folder}"
    if free_bytes < _TOO_FEW_BYTES:
        yield failure(_ABOUT, fact, "make room: full, the gateway refuses what it cannot record")
    elif free_bytes < _FEW_BYTES:
        yield warning(_ABOUT, fact, "make room: full, the gateway refuses what it cannot record")
    else:
        yield fine(_ABOUT, fact)
    if 0 < num_files < _FEW_FILES:
        yield failure(_ABOUT, f"only {num_files} more files fit there", "remove small files")
