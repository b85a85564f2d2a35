"""The port to whatever runs replicas: Kubernetes, local processes, a fake in tests.

Every call is level-triggered and may be repeated.  All of them raise ClusterRefused when the
cluster did not do it; the next tick looks again.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from autoscaler.pool import VariantState


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class ClusterView:
    """One pool as the cluster knows it: counts and phases, no loads."""

    variants: tuple[VariantState, ...]
    addresses: Mapping[str, Address] = field(default_factory=dict)  # by replica that has one
    conflict: str | None = None  # who else scales the same target


class Cluster(Protocol):
    async def observe(self) -> ClusterView: ...

    async def cordon(self, replica: str, *, at_s: float) -> None:
        """No new requests from now on; remembered with the time until it is undone."""

    async def uncordon(self, replica: str) -> None:
        """Undoes cordon and release."""

    async def release(self, replica: str, *, released_to: int) -> None:
        """Of all replicas this one is to go when the count becomes ``released_to``."""

    async def set_count(self, variant: str, *, seen: int, wanted: int) -> None:
        """Refused if the count is not ``seen``: someone else has written it."""
