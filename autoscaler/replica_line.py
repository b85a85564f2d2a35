"""Words to a replica over its own HTTP: take no new requests, or take them again."""

from dataclasses import dataclass

from autoscaler.cluster import Address
from autoscaler.scrape import exchange
from contracts.replica_api import CORDON_PATH


@dataclass(frozen=True, slots=True)
class HttpReplicaLine:
    """Both raise SourceRefused where the engine knows no cordon, SourceFailed if it is silent."""

    timeout_s: float

    async def cordon(self, address: Address) -> None:
        await exchange(address, "PUT", CORDON_PATH, timeout_s=self.timeout_s)

    async def uncordon(self, address: Address) -> None:
        await exchange(address, "DELETE", CORDON_PATH, timeout_s=self.timeout_s)
