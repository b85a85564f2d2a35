"""The port to whoever has what pods say: themselves, or a Prometheus that scrapes them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from autoscaler.cluster import Address
from autoscaler.exposition import Families

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Reading(Generic[T]):
    """What is wanted of a page, and what is made of it."""

    names: tuple[str, ...]  # of families; whoever has whole pages gives more
    sample: Callable[[Families, float | None], T]  # and when it was taken; raises SourceFailed


class Pages(Protocol):
    async def read(
        self, addresses: Mapping[str, Address], reading: Reading[T]
    ) -> Mapping[str, T | None]:
        """By pod; ``None``: it did not tell, however it failed to."""
