"""Whether an attempt that failed is worth another, and when.

Only before the client has a byte, within a budget and the request's time; after which failures is
said by ``resilience.failures``.  The pause is anything up to a bound that doubles ("full jitter"):
https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gateway.resilience.breaker import Breakers
from gateway.resilience.fallback import Fallbacks
from gateway.resilience.hedging import Hedging
from gateway.resilience.retry_budget import RetryBudget

_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class RetryLimits:
    max_retries: int  # of one request
    longest_wait_s: float  # that a replica may ask for with Retry-After
    request_timeout_s: float  # for the whole answer: no retry is begun that would end behind it


@dataclass(frozen=True, slots=True)
class Retries:
    """What all requests of a gateway share."""

    limits: RetryLimits
    budget: RetryBudget
    breakers: Breakers
    random: Callable[[], float]  # uniform in [0, 1)
    fallbacks: Fallbacks
    hedging: Hedging

    def pause_s(
        self, num_retries: int, left_s: float, *, retry_after_s: float | None, is_elsewhere: bool
    ) -> float | None:
        """Before the next attempt; ``None``: there shall be none.

        ``left_s``: of the request's time.  ``is_elsewhere``: with a replica that asked for nothing.
        """
        if num_retries >= self.limits.max_retries:
            return None
        bound_s = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0**num_retries)
        pause_s = self.random() * bound_s
        if retry_after_s is not None and not is_elsewhere:
            if retry_after_s > self.limits.longest_wait_s:
                return None
            pause_s += retry_after_s
        if pause_s >= left_s or not self.budget.withdraw():
            return None
        return pause_s
