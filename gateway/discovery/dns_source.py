"""The addresses of a host name: a headless service, or any list that DNS keeps.

A replica is named by its address, so that all gateways build one ring.  A lookup that fails leaves
the last list in force.
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from typing import Final

from gateway.discovery.membership import Members, Publish
from gateway.worker_thread import WorkerThread

logger = logging.getLogger(__name__)

_LOOK_S: Final = 5.0  # what DNS caches keep anyway

Resolve = Callable[[str, int], Sequence[str]]  # may block; raises OSError


def resolve_addresses(host: str, port: int) -> Sequence[str]:
    """IPv4: the fleet's URLs hold no brackets."""
    found = socket.getaddrinfo(host, port, socket.AF_INET, socket.SOCK_STREAM)
    return sorted({str(address[0]) for *_, address in found})


class DnsSource:
    name = "dns"

    def __init__(self, host: str, port: int, resolve: Resolve = resolve_addresses) -> None:
        self._host = host
        self._port = port
        self._resolve = resolve
        self._has_failed = False

    async def run(self, publish: Publish) -> None:
        resolver = WorkerThread("resolver")  # may take its time: ours is not what it takes
        try:
            while True:
                members = await resolver.call(self.look_up)
                if members is not None:
                    publish(members)
                await asyncio.sleep(_LOOK_S)
        finally:
            resolver.stop()

    def look_up(self) -> Members | None:
        """``None``: it cannot be said."""
        try:
            addresses = self._resolve(self._host, self._port)
        except OSError as exc:
            if not self._has_failed:
                extra = {"error": f"{self._host}: {exc}"}
                logger.warning("no addresses, keeping the last ones", extra=extra)
            self._has_failed = True
            return None
        self._has_failed = False
        return {f"{ip}:{self._port}": f"http://{ip}:{self._port}" for ip in addresses}
