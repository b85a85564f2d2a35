"""How many tokens each tenant has had, by its weight: whoever has had least goes next.

Virtual token counters: Sheng et al. 2024, "Fairness in Serving Large Language Models" (OSDI), with
weights.  Other gateways' service can be added, so that fairness holds across them.
"""

from collections import Counter, OrderedDict
from typing import Final

from contracts.names import TenantId

MAX_CREDIT_TOKENS: Final = 8_192.0  # weighted: a few requests of somebody who asks now and then
_NUM_REMEMBERED: Final = 10_000  # tenants that wait for nothing; who comes back is not forgiven


class VirtualCounters:
    def __init__(self) -> None:
        self._served: OrderedDict[TenantId, float] = OrderedDict()
        self._num_waiting: Counter[TenantId] = Counter()

    def enter(self, tenant: TenantId) -> None:
        """One more of its requests waits.

        Who had none is lifted to a little less than the least served of those that wait: enough for
        a burst, but idleness is not saved up.
        """
        if not self._num_waiting[tenant]:
            waiting = (self.of(t) for t, num in self._num_waiting.items() if num)
            least = min(waiting, default=0.0)
            self._served[tenant] = max(self.of(tenant), least - MAX_CREDIT_TOKENS)
        self._num_waiting[tenant] += 1

    def leave(self, tenant: TenantId) -> None:
        self._num_waiting[tenant] -= 1
        if not self._num_waiting[tenant]:
            del self._num_waiting[tenant]

    def charge(self, tenant: TenantId, weighted_tokens: float) -> None:
        """Negative to correct what was charged too much."""
        self._served[tenant] = self.of(tenant) + weighted_tokens
        self._served.move_to_end(tenant)
        if len(self._served) > _NUM_REMEMBERED:
            self._forget_one()

    def of(self, tenant: TenantId) -> float:
        return self._served.get(tenant, 0.0)

    def _forget_one(self) -> None:
        for tenant in self._served:
            if tenant not in self._num_waiting:
                del self._served[tenant]
                return
