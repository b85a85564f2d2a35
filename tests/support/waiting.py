"""Waiting for a fact of another process, within bounds: never for a moment."""

import time
from collections.abc import Callable

PATIENCE_S = 90.0  # only a test that fails waits so long
_INTERVAL_S = 0.02


def eventually(is_true: Callable[[], bool], what: str, patience_s: float = PATIENCE_S) -> None:
    give_up_monotonic_s = time.monotonic() + patience_s
    while not is_true():
        assert time.monotonic() < give_up_monotonic_s, f"waited in vain: {what}"
        time.sleep(_INTERVAL_S)
