"""Who has lately had more than its fair share, while others wanted some.

What a tenant has had fades within seconds, and whoever has asked for nothing for a minute wants
nothing.  Alone, everybody may have everything.  Batch never wants a share: it gets what is left.
Counted is what this gateway has let in: each judges by what it has seen itself.

Pure: it does not know the time.
"""

import math
from collections import OrderedDict
from typing import Final

import msgspec

from contracts.admission import ServiceClass
from contracts.names import TenantId
from gateway.admission.share import Share

_MEMORY_S: Final = 10.0  # what was had before that counts for a third
_WANTS_S: Final = 60.0  # after its last request
_TOLERANCE: Final = 1.25  # of its share: who has a quarter more by chance is not held back


class _Service(msgspec.Struct):
    """Tokens, fading."""

    num_tokens: float = 0.0
    at_s: float = 0.0

    def add(self, num_tokens: float, now_s: float) -> float:
        """What has come to it: less than that was taken, where it had less."""
        before = self.now(now_s)
        self.num_tokens, self.at_s = max(0.0, before + num_tokens), now_s
        return self.num_tokens - before

    def now(self, now_s: float) -> float:
        return self.num_tokens * _left_after(now_s - self.at_s)


class _Recent(msgspec.Struct):
    weight: float
    service: _Service
    asked_s: float


class RecentShares:
    def __init__(self) -> None:
        self._tenants: OrderedDict[TenantId, _Recent] = OrderedDict()  # who asked last is last
        self._weight = 0.0  # of all of them
        self._service = _Service()

    def asks(self, share: Share, now_s: float) -> None:
        """It wants some now."""
        if share.service_class is ServiceClass.BATCH:
            return
        self._forget(now_s)
        recent = self._tenants.get(share.tenant)
        if recent is None:
            recent = self._tenants[share.tenant] = _Recent(0.0, _Service(0.0, now_s), now_s)
        self._weight += share.effective_weight - recent.weight
        recent.weight, recent.asked_s = share.effective_weight, now_s
        self._tenants.move_to_end(share.tenant)

    def charge(self, share: Share, num_tokens: int, now_s: float) -> None:
        self._add(share, num_tokens, now_s)

    def correct(self, share: Share, num_tokens: int, charged_s: float, now_s: float) -> None:
        """Of what it was charged then, no more than is left can be too much now."""
        self._add(share, num_tokens * _left_after(now_s - charged_s), now_s)

    def is_over(self, share: Share, now_s: float) -> bool:
        recent = self._tenants.get(share.tenant)
        if recent is None or len(self._tenants) == 1:
            return False
        fair = self._service.now(now_s) * recent.weight / self._weight
        return recent.service.now(now_s) > _TOLERANCE * fair

    def _add(self, share: Share, num_tokens: float, now_s: float) -> None:
        recent = self._tenants.get(share.tenant)
        if recent is not None:
            self._service.add(recent.service.add(num_tokens, now_s), now_s)

    def _forget(self, now_s: float) -> None:
        while self._tenants:
            tenant, recent = next(iter(self._tenants.items()))
            if now_s - recent.asked_s < _WANTS_S:
                return
            del self._tenants[tenant]
            self._weight -= recent.weight
            self._service.add(-recent.service.now(now_s), now_s)


def _left_after(elapsed_s: float) -> float:
    return math.exp(-elapsed_s / _MEMORY_S)
