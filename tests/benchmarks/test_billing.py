"""The billing benchmark: a rate is told of what was posted, and of nothing else."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, BrokenBarrierError
from typing import Any

import pytest

from benchmarks.billing import write_and_post
from billing.errors import LedgerUnavailable


def test_nobody_waits_for_a_writer_that_failed(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'no folder' / 'ledger.db'}"
    both: Any = Barrier(2, timeout=60)  # of threads, with the same methods
    with ThreadPoolExecutor(1) as pool:
        writer = pool.submit(write_and_post, url, 10, 5, 0, both)
        both.wait()
        with pytest.raises(BrokenBarrierError):
            both.wait()
        assert isinstance(writer.exception(), LedgerUnavailable)
