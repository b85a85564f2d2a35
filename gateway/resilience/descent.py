"""One request's way down its chain: each step once, and at the end a wait for its own replicas."""

from collections.abc import Iterator

from contracts.fallbacks import FallbackChain
from gateway.api.context import RequestContext
from gateway.errors import NoReplicaAvailable
from gateway.exchange import Exchange
from gateway.fleet import Fleet
from gateway.resilience.fallback import Fallbacks, Target
from gateway.resilience.pause import pause

_LOOK_S = 0.1  # for a replica, while none is ready


class Descent:
    def __init__(
        self,
        fallbacks: Fallbacks,
        chain: FallbackChain,
        context: RequestContext,
        exchange: Exchange,
    ) -> None:
        self._exchange = exchange
        self._home = fallbacks.home(context, exchange.body)
        self._targets: Iterator[Target] = fallbacks.targets(chain, context, exchange.body)
        self._wait_s = chain.wait_ms / 1e3
        self._own_head: bytes | None = None  # without what tells of a fallback

    async def next(self, fleet: Fleet) -> Target | None:
        """``None``: that was all.  Raises Interrupted."""
        for target in self._targets:
            return target
        if self._wait_s == 0.0:
            return None
        deadline_s = fleet.clock.monotonic_s() + self._wait_s
        self._wait_s = 0.0  # it waits once
        while not _is_served(fleet, self._home):
            if fleet.clock.monotonic_s() >= deadline_s:
                return None
            await self._exchange.watch(pause(_LOOK_S))
        return self._home

    def head(self, head: bytes, target: Target) -> bytes:
        """The header lines of an answer by the target."""
        if self._own_head is None:
            self._own_head = head
        return self._own_head + target.headers


def _is_served(fleet: Fleet, home: Target) -> bool:
    try:
        fleet.require_candidate(home.context.request)
    except NoReplicaAvailable:
        return False
    return True
