"""How many tokens each tenant has had, by its weight: whoever has had least goes next.

Virtual token counters: Sheng et al. 2024, "Fairness in Serving Large Language Models" (OSDI), with
weights, and with the virtual time of start-time fair queueing (Goyal et al. 1996) in place of the
least counter that waits.  The time is how far service has come: to the counter of whoever's turn
came last, and, while nobody waits, to that of whoever was served last.  So what somebody had while
nobody else wanted it is held against nobody.  Other gateways' service can be added, so that
fairness holds across them.
"""

from collections import Counter, OrderedDict
from typing import Final

from contracts.names import TenantId

MAX_CREDIT_TOKENS: Final = 8_192.0  # weighted: a few requests of somebody who asks now and then
# Of the order of the largest requests: with less, who asks for much at a time would be forgiven
# most of it by each new request, and get more than its share.
MAX_DEBT_TOKENS: Final = 131_072.0
_NUM_REMEMBERED: Final = 10_000  # tenants that wait for nothing


class VirtualCounters:
    def __init__(self) -> None:
        self._served: OrderedDict[TenantId, float] = OrderedDict()
        self._num_waiting: Counter[TenantId] = Counter()
        self._time = 0.0

    def enter(self, tenant: TenantId) -> None:
        """One more of its requests waits.

        Who had none begins near the virtual time: a little before, enough for a burst, but idleness
        is not saved up; or behind, for what it had while others waited, but not for ever.
        """
        self._set(tenant, self.entering(tenant))
        self._num_waiting[tenant] += 1

    def entering(self, tenant: TenantId) -> float:
        """Where it would begin."""
        if self._num_waiting.get(tenant):
            return self.of(tenant)
        least, most = self._time - MAX_CREDIT_TOKENS, self._time + MAX_DEBT_TOKENS
        return min(most, max(least, self.of(tenant)))

    def take_turn(self, tenant: TenantId) -> None:
        """Its turn has come, before it is charged for it."""
        self._reach(tenant)

    def leave(self, tenant: TenantId) -> None:
        self._num_waiting[tenant] -= 1
        if not self._num_waiting[tenant]:
            del self._num_waiting[tenant]
        if not self._num_waiting:
            self._reach(tenant)

    def charge(self, tenant: TenantId, weighted_tokens: float) -> None:
        """Negative to correct what was charged too much."""
        self._set(tenant, self.of(tenant) + weighted_tokens)
        if not self._num_waiting:
            self._reach(tenant)

    def of(self, tenant: TenantId) -> float:
        return self._served.get(tenant, 0.0)

    def _reach(self, tenant: TenantId) -> None:
        self._time = max(self._time, self.of(tenant))

    def _set(self, tenant: TenantId, served: float) -> None:
        self._served[tenant] = served
        self._served.move_to_end(tenant)
        if len(self._served) > _NUM_REMEMBERED:
            self._forget_one()

    def _forget_one(self) -> None:
        for tenant in self._served:
            if tenant not in self._num_waiting:
                del self._served[tenant]
                return
