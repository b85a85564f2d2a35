"""Says every second that this gateway is alive, and leases its shares while the store answers.

It says so to each node of a cluster, and each answers for itself: where one is away, its tenants'
shares end with their lease, whatever the others answer.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from contracts.names import quota_gateways_tag
from gateway.admission.local_shares import LocalShares
from gateway.admission.quota_scripts import presence_command
from gateway.admission.quota_store import QuotaStore, slot_of
from gateway.admission.resp import RespClient
from gateway.errors import QuotaUnavailable

_PAUSE_S: Final = 1.0
_RETRY_PAUSE_S: Final = 0.1
_MAX_TAGS: Final = 200_000  # tried: finds a node that is home to a single slot


class Presence:
    def __init__(
        self, store: QuotaStore, shares: LocalShares, name: str, monotonic_s: Callable[[], float]
    ) -> None:
        """``name``: ours among all gateways that share the store."""
        self._store = store
        self._shares = shares
        self._name = name
        self._monotonic_s = monotonic_s
        self._tags: dict[RespClient, str] = {}  # of each node, one that it is home to

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            self._learn_tags()
            are_heard = [await self._is_heard(home, tag) for home, tag in self._tags.items()]
            await asyncio.sleep(_PAUSE_S if all(are_heard) else _RETRY_PAUSE_S)

    async def _is_heard(self, home: RespClient, tag: str) -> bool:
        try:
            reply = await self._store.call(presence_command(tag, self._name), slot_of(tag))
        except QuotaUnavailable:
            return False
        if not isinstance(reply, int) or not self._is_home(home, tag):
            return False
        self._shares.renew(home, reply, self._monotonic_s())
        return True

    def _is_home(self, home: RespClient, tag: str) -> bool:
        return self._store.home_of(slot_of(tag)) is home

    def _learn_tags(self) -> None:
        """For nodes that are new; those that are home to their tags no longer lose them."""
        self._tags = {home: tag for home, tag in self._tags.items() if self._is_home(home, tag)}
        unknown = self._store.homes.difference(self._tags)
        for number in range(_MAX_TAGS):
            if not unknown:
                return
            tag = quota_gateways_tag(number)
            home = self._store.home_of(slot_of(tag))
            if home in unknown:
                self._tags[home] = tag
                unknown -= {home}
