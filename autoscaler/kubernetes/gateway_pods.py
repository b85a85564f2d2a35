"""Who asks, from every gateway pod's own counters."""

import asyncio
from dataclasses import dataclass

from autoscaler.cluster import Address
from autoscaler.errors import ClusterRefused, SourceFailed
from autoscaler.exposition import parse
from autoscaler.gateway_metrics import gateway_sample
from autoscaler.kubernetes.cluster import PodSource
from autoscaler.kubernetes.pods import Expectation, address_of
from autoscaler.kubernetes.resource import GatewaySource
from autoscaler.observe import GatewaySample
from autoscaler.scrape import get


@dataclass(frozen=True, slots=True)
class GatewayPods:
    pods: PodSource
    source: GatewaySource
    timeout_s: float

    async def ask(self) -> GatewaySample | None:
        """``None``: one of them did not tell, and what it was asked for is unknown."""
        try:
            found = await self.pods.matching(self.source.label_selector)
            expected = Expectation(0.0, self.source.port)
            addresses = [address_of(pod, expected) for pod in found.values()]
            reads = [self._page(address) for address in addresses if address is not None]
            if not reads:
                return None
            return gateway_sample(parse(page) for page in await asyncio.gather(*reads))
        except (ClusterRefused, SourceFailed):
            return None

    async def _page(self, address: Address) -> str:
        return await get(address, "/metrics", timeout_s=self.timeout_s)
