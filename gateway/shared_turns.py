"""Turns that are fair across gateways: what each tenant had elsewhere counts here, too.

Every gateway adds what it charged a tenant, and what it gave back of that, to two sums in the quota
store, and is told those of all.  What others added is charged here as if it had been served here.
A tenth of a second late at most; without the store each gateway is fair by itself.

Both sums only grow, so one that is less than it must be began anew meanwhile.  What was sent but
not answered counts as told: it may have been added, and nobody is charged twice.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from contracts.names import TenantId, fair_served_key
from gateway.admission.fair_queue import FairQueue, Service
from gateway.admission.quota_store import QuotaStore, slot_of
from gateway.admission.resp import pack
from gateway.admission.share import Share
from gateway.completion import Completion
from gateway.errors import QuotaUnanswered, QuotaUnavailable

_INTERVAL_S: Final = 0.1
_FORGOTTEN_MS: Final = 60_000  # without service the sums are no longer needed
_MAX_KNOWN: Final = 10_000
_RETURNED: Final = " returned"  # behind a model's name: the field of the second sum

Queues = Mapping[str, FairQueue[Any]]  # by model; whoever waits in them does not matter here


@dataclass(frozen=True, slots=True)
class _Told:
    """One tenant's service here, on its way to the store."""

    queue: FairQueue[Any]
    share: Share
    model: str
    service: Service
    charged: Completion[object]  # the sum of all gateways, once it comes
    returned: Completion[object]


class SharedTurns:
    def __init__(self, store: QuotaStore, queues: Callable[[], Queues]) -> None:
        self._store = store
        self._queues = queues
        self._sums: OrderedDict[tuple[TenantId, str], Service] = OrderedDict()  # as last told

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            await asyncio.sleep(_INTERVAL_S)
            await self.share()

    async def share(self) -> None:
        """Once.  What cannot be told now is told later."""
        all_told = [
            self._tell(queue, share, model, service)
            for model, queue in self._queues().items()
            for share, service in queue.unshared().items()
        ]
        for told in all_told:
            try:
                charged, returned = await told.charged, await told.returned
            except QuotaUnanswered:
                told.queue.told(told.share, told.service)
                self._sums.pop((told.share.tenant, told.model), None)  # with it or without
            except QuotaUnavailable:
                continue
            else:
                if isinstance(charged, int) and isinstance(returned, int):
                    self._note(told, Service(charged, returned))
                # else an error, which the limiter meets and tells of

    def _tell(self, queue: FairQueue[Any], share: Share, model: str, service: Service) -> _Told:
        key, slot = fair_served_key(share.tenant), slot_of(share.tenant)

        def add(field: str, num_tokens: int) -> Completion[object]:
            return self._store.call(pack("HINCRBY", key, field, num_tokens), slot)

        charged = add(model, service.charged)
        returned = add(model + _RETURNED, service.returned)
        self._store.call(pack("PEXPIRE", key, _FORGOTTEN_MS), slot)
        return _Told(queue, share, model, service, charged, returned)

    def _note(self, told: _Told, sums: Service) -> None:
        told.queue.told(told.share, told.service)
        elsewhere = self._elsewhere((told.share.tenant, told.model), told.service, sums)
        if elsewhere:
            told.queue.served_elsewhere(told.share, elsewhere)

    def _elsewhere(self, key: tuple[TenantId, str], added: Service, sums: Service) -> int:
        before = self._sums.get(key)
        self._sums[key] = sums
        self._sums.move_to_end(key)
        if len(self._sums) > _MAX_KNOWN:
            self._sums.popitem(last=False)
        if before is None:
            return 0
        others = sums - before - added
        has_begun_anew = others.charged < 0 or others.returned < 0
        return (sums - added if has_begun_anew else others).num_tokens
