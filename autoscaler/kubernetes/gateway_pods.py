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
from autoscaler.observe import GatewaySample, GatewaySamples
from autoscaler.scrape import get


@dataclass(frozen=True, slots=True)
class GatewayPods:
    pods: PodSource
    source: GatewaySource
    timeout_s: float

    async def ask(self) -> GatewaySamples | None:
        """By the pod's uid; ``None``: one of them did not tell, and its demand is unknown."""
        try:
            found = await self.pods.matching(self.source.label_selector)
            expected = Expectation(0.0, self.source.port)
            places = {pod.metadata.uid: address_of(pod, expected) for pod in found.values()}
            able = {uid: address for uid, address in places.items() if address is not None}
            if not able:
                return None
            samples = await asyncio.gather(*(self._sample(address) for address in able.values()))
            return dict(zip(able, samples, strict=True))
        except (ClusterRefused, SourceFailed):
            return None

    async def _sample(self, address: Address) -> GatewaySample:
        return gateway_sample(parse(await get(address, "/metrics", timeout_s=self.timeout_s)))
