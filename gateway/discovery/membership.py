"""What all sources say together, and the pool after it.

A source publishes all of its members whenever they change.  A source that cannot be read publishes
nothing: what was there stays, and the pool's own polls tell whether it lives.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Protocol

from gateway.routing.pool import ReplicaPool
from gateway.upstream.replica_client import ReplicaClient

logger = logging.getLogger(__name__)

Members = Mapping[str, str]  # URLs by name; a name should outlive its replica's restarts
Publish = Callable[[Members], None]


class Source(Protocol):
    """One way to find replicas."""

    name: str

    async def run(self, publish: Publish) -> None:
        """Until cancelled."""


class Membership:
    def __init__(self, pool: ReplicaPool, make_client: Callable[[str, str], ReplicaClient]) -> None:
        """``make_client``: of a name and a URL."""
        self._pool = pool
        self._make_client = make_client
        self._members: dict[str, Members] = {}  # by source
        self._joined: dict[str, str] = {}

    def publisher(self, source: str) -> Publish:
        def publish(members: Members) -> None:
            self._members[source] = members
            self._follow()

        return publish

    def _follow(self) -> None:
        """Of two sources that give one name two URLs always the same counts: who began later."""
        wanted = {name: url for members in self._members.values() for name, url in members.items()}
        for name in self._joined.keys() - wanted.keys():
            del self._joined[name]
            self._pool.leave(name)
            logger.info("replica left", extra={"replica": name})
        for name, url in wanted.items():
            if self._joined.get(name) != url:
                self._joined[name] = url
                self._pool.join(self._make_client(name, url))
                logger.info("replica joined", extra={"replica": name})
