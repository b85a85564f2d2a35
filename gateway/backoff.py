"""How long to wait after failures in a row."""

from collections.abc import Sequence


def backoff_s(steps_s: Sequence[float], num_failures: int) -> float:
    """The pause after the ``num_failures``-th failure in a row, from 1; the last step stays."""
    return steps_s[min(num_failures, len(steps_s)) - 1]
