"""Turns that are fair across gateways: what each tenant had elsewhere counts here, too.

Every gateway adds what it served to a counter of the tenant in the quota store, and is told the sum
of all.  What others added is charged here as if it had been served here.  A tenth of a second late
at most; without the store each gateway is fair by itself.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Final

from contracts.names import TenantId, fair_served_key
from gateway.admission.fair_queue import FairQueue, Share
from gateway.admission.quota_store import QuotaStore, slot_of
from gateway.admission.resp import pack
from gateway.completion import Completion
from gateway.errors import QuotaUnavailable

_INTERVAL_S: Final = 0.1
_FORGOTTEN_MS: Final = 60_000  # without service the sums are no longer needed
_MAX_KNOWN: Final = 10_000

Queues = Mapping[str, FairQueue[Any]]  # by model; whoever waits in them does not matter here


class SharedTurns:
    def __init__(self, store: QuotaStore, queues: Callable[[], Queues]) -> None:
        self._store = store
        self._queues = queues
        self._sums: OrderedDict[tuple[TenantId, str], int] = OrderedDict()  # as last told

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            await asyncio.sleep(_INTERVAL_S)
            await self.share()

    async def share(self) -> None:
        """Once.  What cannot be told now is told later."""
        asked = [
            (queue, share, num_tokens, (share.tenant, model), self._add(share, model, num_tokens))
            for model, queue in self._queues().items()
            for share, num_tokens in queue.unshared().items()
        ]
        for queue, share, num_tokens, key, reply in asked:
            try:
                total = await reply
            except QuotaUnavailable:
                continue
            if isinstance(total, int):  # else an error, which the limiter meets and tells of
                elsewhere = self._elsewhere(key, round(num_tokens), total)
                queue.shared(share, num_tokens, elsewhere=elsewhere)

    def _add(self, share: Share, model: str, num_tokens: float) -> Completion[object]:
        """The sum of all gateways, once it comes."""
        key, slot = fair_served_key(share.tenant), slot_of(share.tenant)
        sum_of_all = self._store.call(pack("HINCRBY", key, model, round(num_tokens)), slot)
        self._store.call(pack("PEXPIRE", key, _FORGOTTEN_MS), slot)
        return sum_of_all

    def _elsewhere(self, key: tuple[TenantId, str], num_added: int, total: int) -> int:
        before = self._sums.get(key)
        self._sums[key] = total
        self._sums.move_to_end(key)
        if len(self._sums) > _MAX_KNOWN:
            self._sums.popitem(last=False)
        return 0 if before is None else max(0, total - before - num_added)
