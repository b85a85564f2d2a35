"""Who asks, from every gateway pod's own counters."""

from dataclasses import dataclass

from autoscaler.errors import ClusterRefused
from autoscaler.gateway_metrics import GATEWAY_READING
from autoscaler.kubernetes.cluster import PodSource
from autoscaler.kubernetes.pods import Expectation, address_of
from autoscaler.kubernetes.resource import GatewaySource
from autoscaler.observe import GatewaySamples
from autoscaler.pages import Pages


@dataclass(frozen=True, slots=True)
class GatewayPods:
    pods: PodSource
    source: GatewaySource
    pages: Pages

    async def ask(self) -> GatewaySamples | None:
        """By the pod's uid; ``None``: one of them did not tell, and its demand is unknown."""
        try:
            found = await self.pods.matching(self.source.label_selector)
        except ClusterRefused:
            return None
        expected = Expectation(0.0, self.source.port)
        places = {name: address_of(pod, expected) for name, pod in found.items()}
        able = {name: address for name, address in places.items() if address is not None}
        told = {
            found[name].metadata.uid: sample
            for name, sample in (await self.pages.read(able, GATEWAY_READING)).items()
            if sample is not None
        }
        return told if able and len(told) == len(able) else None
