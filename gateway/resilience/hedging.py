"""When a stream has been waited for long enough to ask another replica for it as well.

Only where the tenant's policy says so, and only before the first byte: whichever begins first is
the answer, the other is given up.  A document's first byte is its last: nothing can be learned from
how long it takes.
"""

from typing import Final

from contracts.hedging import HedgePolicy
from gateway.admission.quantile import QuantileTable
from gateway.resilience.retry_budget import RetryBudget

_QUANTILE: Final = 0.95
_ENOUGH: Final = 20  # beginnings, to know it by


class Hedging:
    """What all requests of a gateway share."""

    def __init__(self, budget: RetryBudget) -> None:
        """``budget``: of its own, as what is only slow must take nothing from what fails."""
        self.budget = budget
        self._beginnings: dict[str, QuantileTable] = {}  # seconds, by model
        self.num_won = self.num_lost = 0  # second attempts that began first, or did not

    def after_s(self, policy: HedgePolicy, model: str) -> float | None:
        """``None``: too little is known."""
        if policy.after_ms is not None:
            return policy.after_ms / 1e3
        seen = self._beginnings.get(model)
        return None if seen is None or seen.num_seen(0) < _ENOUGH else seen.guess(0)

    def began(self, model: str, seconds: float) -> None:
        """An attempt has begun after so long, or was given up then."""
        seen = self._beginnings.get(model)
        if seen is None:
            seen = self._beginnings[model] = QuantileTable(1, _QUANTILE)
        seconds = max(1e-6, seconds)
        seen.observe(0, seconds, first_guess=seconds)
