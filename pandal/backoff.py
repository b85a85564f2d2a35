"""How long to wait before a child is started again."""

FIRST_DELAY_S = 0.5
LONGEST_DELAY_S = 30.0
HEALTHY_UPTIME_S = 60.0


class RestartBackoff:
    """Doubles from half a second to thirty; a healthy minute makes it forget."""

    def __init__(self) -> None:
        self._num_failures = 0

    def delay_after_s(self, uptime_s: float) -> float:
        if uptime_s >= HEALTHY_UPTIME_S:
            self._num_failures = 0
        # The exponent is capped too: 2.0 ** 1025 is an OverflowError, after a day of failures.
        delay_s = FIRST_DELAY_S * 2.0 ** min(self._num_failures, 16)
        self._num_failures += 1
        return min(delay_s, LONGEST_DELAY_S)
