"""How long an engine that has work may be silent before it counts as hung."""

from collections.abc import Callable


class Watchdog:
    """Knows nothing of engines: somebody feeds it, somebody asks it."""

    def __init__(
        self, *, step_timeout_s: float, exit_timeout_s: float, monotonic_s: Callable[[], float]
    ) -> None:
        """Silent for ``step_timeout_s``: hung; for ``exit_timeout_s``: given up."""
        self._step_timeout_s = step_timeout_s
        self._exit_timeout_s = exit_timeout_s
        self._monotonic_s = monotonic_s
        self._fed_at_s = monotonic_s()

    def feed(self) -> None:
        self._fed_at_s = self._monotonic_s()

    @property
    def silence_s(self) -> float:
        return self._monotonic_s() - self._fed_at_s

    @property
    def is_hungry(self) -> bool:
        return self.silence_s > self._step_timeout_s

    @property
    def is_starved(self) -> bool:
        return self.silence_s > self._exit_timeout_s

    @property
    def poll_interval_s(self) -> float:
        """Often enough to notice in time."""
        return min(1.0, self._step_timeout_s / 4)
