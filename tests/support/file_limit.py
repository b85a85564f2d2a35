"""A disk that is full for this process."""

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def file_limit(num_bytes: int) -> Iterator[None]:
    """A full disk for this process: writes beyond ``num_bytes`` of a file fail with EFBIG.

    Never longer than needed: the test runner's own output may be a file.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
