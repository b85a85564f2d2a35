"""Waiting for a fact of another process, which has no way to call back, within bounds."""

import time
from collections.abc import Callable

_INTERVAL_S = 0.05


def wait_until(
    is_true: Callable[[], bool], what: str, patience_s: float, interval_s: float = _INTERVAL_S
) -> None:
    """Raises RuntimeError when that takes too long, and whatever ``is_true`` raises."""
    give_up_s = time.monotonic() + patience_s
    while not is_true():
        if time.monotonic() > give_up_s:
            raise RuntimeError(f"waited {patience_s:g} s for {what}")
        time.sleep(interval_s)
