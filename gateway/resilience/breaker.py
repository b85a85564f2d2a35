"""Keeps requests away from a replica that fails at a model, and finds out when it is well again.

Closed: all requests pass.  After so many failures in a row it opens: none passes for a while, which
grows each time.  Then it is half open: one request passes, and its end decides.  What a client did
wrong says nothing about a replica, and neither does a replica that says it is full.
"""

from collections.abc import Callable, Collection
from typing import Final

import msgspec

from gateway.backoff import backoff_s

_FAILURES: Final = 5  # in a row
_OPEN_S: Final = (1.0, 2.0, 5.0, 10.0, 30.0)


class _Breaker(msgspec.Struct):
    num_failures: int = 0  # in a row
    num_openings: int = 0  # without a success in between
    probe_at_s: float | None = None  # None: closed
    is_probing: bool = False  # half open, and the one request is under way


class Breakers:
    """Of all replicas and models.  Empty, and free of cost, while all are well."""

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        self._monotonic_s = monotonic_s
        self._breakers: dict[tuple[str, str], _Breaker] = {}  # by model and replica

    def __bool__(self) -> bool:
        """Somebody has failed lately."""
        return bool(self._breakers)

    def barred(self, model: str) -> Collection[str]:
        """The replicas that get no request for the model now."""
        now_s = self._monotonic_s()
        return {
            replica
            for (of_model, replica), breaker in self._breakers.items()
            if of_model == model and breaker.probe_at_s is not None
            if breaker.is_probing or now_s < breaker.probe_at_s
        }

    def begin(self, model: str, replica: str) -> None:
        """A request goes there.  To a half open one it is the probe."""
        breaker = self._breakers.get((model, replica))
        if breaker is not None and breaker.probe_at_s is not None:
            breaker.is_probing = True

    def began(self, model: str, replica: str) -> None:
        """It has begun to answer: enough of a probe, and no end of a row of answers broken off."""
        breaker = self._breakers.get((model, replica))
        if breaker is not None and breaker.is_probing:
            del self._breakers[model, replica]

    def succeeded(self, model: str, replica: str) -> None:
        """It answered, be it with a refusal of what the client wants."""
        self._breakers.pop((model, replica), None)

    def failed(self, model: str, replica: str) -> None:
        breaker = self._breakers.setdefault((model, replica), _Breaker())
        breaker.num_failures += 1
        if self.state(model, replica) == "open":
            return  # what had begun before
        if breaker.is_probing or breaker.num_failures >= _FAILURES:
            breaker.num_openings += 1
            breaker.probe_at_s = self._monotonic_s() + backoff_s(_OPEN_S, breaker.num_openings)
            breaker.is_probing = False

    def undecided(self, model: str, replica: str) -> None:
        """The request ended before it could tell: the next one is the probe."""
        breaker = self._breakers.get((model, replica))
        if breaker is not None:
            breaker.is_probing = False

    def state(self, model: str, replica: str) -> str:
        """``closed``, ``open`` or ``half_open``."""
        breaker = self._breakers.get((model, replica))
        if breaker is None or breaker.probe_at_s is None:
            return "closed"
        is_due = breaker.is_probing or self._monotonic_s() >= breaker.probe_at_s
        return "half_open" if is_due else "open"
