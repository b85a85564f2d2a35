"""How long one request waits before its next attempt, and what its client is told of waiting.

Waited for is what a replica of ours asked for, and no more: for how long a breaker leaves somebody
alone is told to the client, but whoever is next in a chain may be ready at once.
"""

from collections.abc import Callable, Collection

from gateway.errors import NoReplicaAvailable
from gateway.resilience.retries import Retries


class Waits:
    def __init__(
        self, retries: Retries, monotonic_s: Callable[[], float], started_monotonic_s: float
    ) -> None:
        self._retries = retries
        self._monotonic_s = monotonic_s
        self._deadline_s = started_monotonic_s + retries.limits.request_timeout_s
        self._num_retries = 0
        self._asked_ms: int | None = None  # the least that any of ours asked for

    def note_asked(self, asked_ms: int) -> None:
        """By one of ours that has turned the request away."""
        self._asked_ms = asked_ms if self._asked_ms is None else min(asked_ms, self._asked_ms)

    def forget_asked(self) -> None:
        """Others are asked now."""
        self._asked_ms = None

    def before_all_s(self) -> float | None:
        """Before all are asked again; ``None``: they are not."""
        asked_s = None if self._asked_ms is None else self._asked_ms / 1e3
        self.forget_asked()
        return self.before_next_s(asked_s, is_elsewhere=False)

    def before_next_s(self, asked_s: float | None, *, is_elsewhere: bool) -> float | None:
        """As ``Retries.pause_s``, of which each is a retry."""
        pause_s = self._retries.pause_s(
            self._num_retries,
            self._deadline_s - self._monotonic_s(),
            retry_after_s=asked_s,
            is_elsewhere=is_elsewhere,
        )
        self._num_retries += pause_s is not None
        return pause_s

    def tell(
        self, error: NoReplicaAvailable, model: str, tried: Collection[str], away: Collection[str]
    ) -> None:
        """The soonest that any of the ``tried`` asked for, or whoever has to be left alone.

        One of ours that was tried and asked for nothing may have room sooner than these.
        """
        asked_ms = self._asked_ms
        if asked_ms is not None or all(name in away for name in tried):
            left_ms = self._retries.breakers.left_alone_ms(model, away)
            told = [ms for ms in (asked_ms, left_ms) if ms is not None]
            asked_ms = min(told, default=None)
        if asked_ms is not None:
            error.retry_after_ms = asked_ms
