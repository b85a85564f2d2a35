"""The router's view of one replica, and of one request."""

from collections.abc import Sequence

import msgspec

from gateway.prompt import Affinity


class LoadSum(msgspec.Struct, eq=False):
    """Of some endpoints."""

    tokens: int = 0


class Endpoint(msgspec.Struct, eq=False):
    """Kept up to date in place; for the length of one decision, which waits for nothing, it stands
    still."""

    name: str
    is_ready: bool
    models: frozenset[str]  # as last reported; kept while the replica is away
    is_ejected: bool = False  # it fails much more often than the others
    load_tokens: int = 0  # outstanding: prompts and the answers expected, ours and others'
    warmth: float = 1.0  # less: it has just joined, and not all of its keys have moved to it
    slowness: float = 1.0  # in prefilling, of the mean
    surcharge: float = 0.0  # what a token of a request costs more there: see ``Outside.weight``
    keeps_prefixes: bool = True  # False: another owner's, of whose cache nobody can tell
    block_bit: int = 0  # its place in the index of blocks; 0: it tells nobody which it has
    sums: list[LoadSum] = msgspec.field(default_factory=list)  # that its load is part of

    def add_load(self, num_tokens: int) -> None:
        """Or take away, where negative."""
        self.load_tokens += num_tokens
        for load in self.sums:
            load.tokens += num_tokens


NO_AFFINITY = Affinity(b"", b"")


class RoutingRequest(msgspec.Struct, frozen=True):
    model: str
    affinity: Affinity
    prompt_tokens: int = 1
    num_tokens: int = 1  # those, and the answer expected
    chain: Sequence[int] = ()  # see ``text_chain``
    providers: tuple[str, ...] = ()  # who may serve it beside our own replicas
