"""Where compiled code is kept between processes.

Left alone, Numba keeps it beside the sources or in a folder of its own, and two processes that
compile different things at once may each find the other's code under its own name: it writes the
index and the code in two steps.  Here a folder belongs to one state of the sources and one version
of Numba, so that nothing stale can ever be found in it, and to one process at a time.
"""

import fcntl
import pickle
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numba

from kernels.vector_ir.specialization import source_digest

_ONLY_OURS: Final = "UserProvidedCacheLocator"  # Numba's name for the place its settings name


@contextmanager
def compiling_into(directory: Path | None) -> Iterator[None]:
    """Inside, compiled code is looked up and kept under ``directory`` only; None: nowhere.

    Waits while another process is compiling into it.  Raises OSError when the folder cannot be
    made, locked or written, and whatever unpickling raises when it holds damaged files, which are
    gone then.
    """
    if directory is None:
        with _numba_keeps_in(""):
            yield
        return
    place = directory / f"{source_digest()}-numba-{numba.__version__}"
    # Code that will run is read from here: nobody else may write to it.
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # freed by the kernel when the process dies
        try:
            with _numba_keeps_in(str(place)):
                yield
        except (EOFError, pickle.UnpicklingError):
            shutil.rmtree(place, ignore_errors=True)
            raise


@contextmanager
def _numba_keeps_in(directory: str) -> Iterator[None]:
    config = numba.config
    before = config.CACHE_DIR, config.CACHE_LOCATOR_CLASSES
    config.CACHE_DIR, config.CACHE_LOCATOR_CLASSES = directory, _ONLY_OURS
    try:
        yield
    finally:
        config.CACHE_DIR, config.CACHE_LOCATOR_CLASSES = before
