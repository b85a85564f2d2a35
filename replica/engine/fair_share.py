"""How many tokens each tenant has been served: whoever has had least goes first.

Virtual token counters: Sheng et al. 2024, "Fairness in Serving Large Language Models" (OSDI).
Input and output weigh the same; what is shared or computed again weighs nothing.
"""

from collections import Counter, OrderedDict
from typing import Final

_NUM_REMEMBERED: Final = 10_000  # tenants that have left; who comes back is not forgiven


class ServedTokens:
    def __init__(self) -> None:
        self._served: OrderedDict[str, int] = OrderedDict()
        self._num_live: Counter[str] = Counter()

    def enter(self, tenant: str) -> None:
        """One more live request.

        Who was away is lifted to the least served of those present: idleness is not saved up.
        """
        if not self._num_live[tenant]:
            present = (self._served[t] for t in self._num_live if t != tenant)
            self._served[tenant] = max(self.of(tenant), min(present, default=0))
            self._served.move_to_end(tenant)
        self._num_live[tenant] += 1

    def leave(self, tenant: str) -> None:
        """One request less."""
        self._num_live[tenant] -= 1
        if self._num_live[tenant] == 0:
            del self._num_live[tenant]
        if len(self._served) > _NUM_REMEMBERED + len(self._num_live):
            oldest = next(t for t in self._served if t not in self._num_live)
            del self._served[oldest]

    def add(self, tenant: str, num_tokens: int) -> None:
        self._served[tenant] += num_tokens

    def of(self, tenant: str) -> int:
        return self._served.get(tenant, 0)
