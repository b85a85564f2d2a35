"""The router's view of one replica."""

import msgspec


class Endpoint(msgspec.Struct):
    """Its replica keeps it up to date; for the length of one decision, which waits for nothing, it
    stands still."""

    name: str
    is_ready: bool
    models: frozenset[str]  # as last reported; kept while the replica is away
    num_in_flight: int = 0  # requests this gateway has open on it


class RoutingRequest(msgspec.Struct, frozen=True):
    model: str
    affinity_key: bytes
