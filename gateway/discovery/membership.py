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
            self._pool.heard_from(source)

        return publish

    def _follow(self) -> None:
        """Of two sources that give one name two URLs always the same counts: who began later."""
        wanted = {name: url for members in self._members.values() for name, url in members.items()}
        leaving = self._joined.keys() - wanted.keys()
        joining = [name for name, url in wanted.items() if self._joined.get(name) != url]
        if not leaving and not joining:
            return
        self._joined = wanted
        self._pool.follow([self._make_client(name, wanted[name]) for name in joining], leaving)
        for name in leaving:
            logger.info("replica left", extra={"replica": name})
        for name in joining:
            logger.info("replica joined", extra={"replica": name})
