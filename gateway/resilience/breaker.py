"""Keeps requests away from a replica that fails at a model, and finds out when it is well again.

Closed: all requests pass.  After so many failures in a row it opens: none passes for a while, which
grows each time.  Then it is half open: one request passes, the probe, and its end alone decides.
What a client did wrong says nothing about a replica, and neither does a replica that says it is
full.  A refusal that may be about one prompt decides nothing alone, not even as a probe: only so
many in a row do, with no other request's answer in between.
"""

import logging
import math
from collections.abc import Callable, Collection, Sized
from enum import StrEnum
from typing import Final

import msgspec

from gateway.backoff import backoff_s
from gateway.resilience.failures import foreign_cause

logger = logging.getLogger(__name__)

_NOBODY: Final = frozenset[str]()
_FAILURES: Final = 5  # in a row
_OPEN_S: Final = (1.0, 2.0, 5.0, 10.0, 30.0)
_FORGOTTEN_S: Final = 600.0  # after the last failure: a pod that failed and went comes no more


class BreakerState(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class _Breaker(msgspec.Struct):
    num_failures: int = 0  # in a row
    num_refusals: int = 0  # in a row, each maybe of its prompt alone
    failed_at_s: float = 0.0
    num_openings: int = 0  # without a success in between
    probe_at_s: float | None = None  # None: closed
    probe: int | None = None  # half open, and the one request is under way
    is_told: bool = False  # to keep away: by the other side itself

    def is_decided_by(self, probe: int | None) -> bool:
        """By the end of a request that began as that probe, or as none."""
        return self.probe_at_s is None or (probe is not None and probe == self.probe)


class Breakers:
    """Of all replicas and models.  Empty, and free of cost, while all are well."""

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        self._monotonic_s = monotonic_s
        self._breakers: dict[tuple[str, str], _Breaker] = {}  # by model and replica
        self.failing: Sized = self._breakers
        """Empty while nobody has failed lately: then there is nothing to ask or to tell but a
        failure."""
        self._num_probes = 0
        self.num_openings = 0

    def barred(self, model: str) -> frozenset[str]:
        """The replicas that get no request for the model now."""
        if not self._breakers:
            return _NOBODY
        now_s = self._monotonic_s()
        self._forget(now_s)
        return frozenset(
            replica
            for (of_model, replica), breaker in self._breakers.items()
            if of_model == model and breaker.probe_at_s is not None
            if breaker.probe is not None or now_s < breaker.probe_at_s
        )

    def told(self, model: str) -> frozenset[str]:
        """Of the barred those that said so themselves: no request is better off with them."""
        return frozenset(
            replica
            for (of_model, replica), breaker in self._breakers.items()
            if of_model == model and breaker.is_told
        )

    def left_alone_ms(self, model: str, replicas: Collection[str]) -> int | None:
        """Until the first of them may be asked again; ``None``: no time is set for any."""
        now_s = self._monotonic_s()
        lefts_s = (
            breaker.probe_at_s - now_s
            for (of_model, replica), breaker in self._breakers.items()
            if of_model == model and replica in replicas and breaker.probe_at_s is not None
        )
        least_s = min((left_s for left_s in lefts_s if left_s > 0.0), default=None)
        return None if least_s is None else math.ceil(1e3 * least_s)

    def begin(self, model: str, replica: str) -> int | None:
        """A request goes there.  The probe's number, if it is one: its end is told with that."""
        breaker = self._breakers.get((model, replica))
        if breaker is None or breaker.probe_at_s is None or breaker.probe is not None:
            return None
        self._num_probes += 1
        breaker.probe = self._num_probes
        return breaker.probe

    def began(self, model: str, replica: str, probe: int | None) -> None:
        """It has begun to answer: enough of a probe and for a row of refusals to end, not for one
        of answers broken off."""
        breaker = self._breakers.get((model, replica))
        if breaker is not None:
            breaker.num_refusals = 0
        if probe is not None:
            self.succeeded(model, replica, probe)

    def succeeded(self, model: str, replica: str, probe: int | None) -> None:
        """It answered, be it with a refusal of what the client wants."""
        breaker = self._breakers.get((model, replica))
        if breaker is None or not breaker.is_decided_by(probe):
            return
        del self._breakers[model, replica]
        if breaker.probe_at_s is not None:
            logger.info("breaker closed", extra={"model": model, "replica": replica})

    def failed(
        self, model: str, replica: str, probe: int | None, foreign_status: int | None = None
    ) -> None:
        """``foreign_status``: with which a server of another owner answered; 0: with none."""
        breaker = self._failing((model, replica))
        if not breaker.is_decided_by(probe):
            return  # what had begun before
        breaker.num_failures += 1
        if breaker.probe is not None or breaker.num_failures >= _FAILURES:
            breaker.is_told = False
            self._open((model, replica), breaker, None, foreign_status)

    def refused(self, model: str, replica: str, probe: int | None, foreign_status: int) -> None:
        """Maybe for what this prompt is."""
        breaker = self._failing((model, replica))
        if not breaker.is_decided_by(probe):
            return
        breaker.probe = None  # the next one is
        breaker.num_refusals += 1
        if breaker.num_refusals >= _FAILURES:
            breaker.is_told = False
            self._open((model, replica), breaker, None, foreign_status)

    def turned_away(
        self,
        model: str,
        replica: str,
        probe: int | None,
        foreign_status: int,
        for_s: float | None = None,
    ) -> None:
        """It said that it takes no more of these, maybe for how long: opens at once."""
        breaker = self._failing((model, replica))
        if breaker.is_decided_by(probe):
            breaker.is_told = True
            self._open((model, replica), breaker, for_s, foreign_status)

    def _failing(self, at: tuple[str, str]) -> _Breaker:
        breaker = self._breakers.setdefault(at, _Breaker())
        breaker.failed_at_s = self._monotonic_s()
        return breaker

    def _open(
        self,
        at: tuple[str, str],
        breaker: _Breaker,
        for_s: float | None,
        foreign_status: int | None,
    ) -> None:
        breaker.probe, breaker.num_refusals = None, 0
        breaker.num_openings += 1
        open_s = backoff_s(_OPEN_S, breaker.num_openings) if for_s is None else for_s
        breaker.probe_at_s = breaker.failed_at_s + min(_FORGOTTEN_S, open_s)
        self.num_openings += 1
        extra = {"model": at[0], "replica": at[1], "open_s": open_s}
        if foreign_status is None:
            logger.info("breaker opened", extra=extra)
        else:  # nobody else looks after our account there
            extra |= {"status": foreign_status, "reason": foreign_cause(foreign_status)}
            logger.warning("breaker opened", extra=extra)

    def undecided(self, model: str, replica: str, probe: int | None) -> None:
        """The request ended before it could tell: the next one is the probe."""
        breaker = self._breakers.get((model, replica))
        if probe is not None and breaker is not None and breaker.probe == probe:
            breaker.probe = None

    def state(self, model: str, replica: str) -> BreakerState:
        breaker = self._breakers.get((model, replica))
        if breaker is None or breaker.probe_at_s is None:
            return BreakerState.CLOSED
        is_due = breaker.probe is not None or self._monotonic_s() >= breaker.probe_at_s
        return BreakerState.HALF_OPEN if is_due else BreakerState.OPEN

    def _forget(self, now_s: float) -> None:
        """Those that have not failed for long, and on which no probe is waiting."""
        oldest_s = now_s - _FORGOTTEN_S
        for at, breaker in list(self._breakers.items()):
            if breaker.failed_at_s < oldest_s and breaker.probe is None:
                del self._breakers[at]
