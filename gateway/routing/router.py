"""Candidates, decisions, and what changes about them with time."""

from collections.abc import Collection

from gateway.errors import NoReplicaAvailable
from gateway.prompt import Affinity, PromptText
from gateway.routing.candidates import Candidates
from gateway.routing.decision import Decision, Reason
from gateway.routing.endpoint import NO_AFFINITY, Endpoint, RoutingRequest
from gateway.routing.hot_prefixes import HotPrefixes
from gateway.routing.pool import ReplicaPool
from gateway.routing.prefix_index import PrefixIndex
from gateway.routing.prefix_reuse import PrefixReuse
from gateway.routing.profile import RoutingProfile
from gateway.routing.ring import ring_point

_Whose = str | tuple[str, tuple[str, ...]]  # a model's, and of which providers if there are any


class Router:
    def __init__(
        self,
        pool: ReplicaPool,
        profile: RoutingProfile,
        hot: HotPrefixes,
        reuse: PrefixReuse,
        index: PrefixIndex | None = None,
    ) -> None:
        """``index``: which wants to know what is on its way."""
        self._pool = pool
        self._profile = profile
        self._hot = hot
        self._reuse = reuse
        self._index = index
        self._candidates: dict[_Whose, Candidates] = {}  # as of that version
        self._version = pool.version

    def decide(self, request: RoutingRequest, tried: Collection[str] = ()) -> Decision:
        """Of those that have not been ``tried``.  Raises NoReplicaAvailable."""
        group = None if request.providers else self._candidates.get(request.model)
        if group is None or self._version != self._pool.version:
            group = self.candidates(request.model, request.providers)
        if tried:
            group = group.without(tried)
        endpoints = group.endpoints
        if not endpoints:
            raise NoReplicaAvailable("No replica can take this request now.")
        if len(endpoints) == 1:
            return Decision(endpoints[0], Reason.ONLY, None, endpoints, (0,), (0,))
        decision = self._profile.decide(request, group)
        affinity, chosen = request.affinity, decision.endpoint
        if affinity.conversation != affinity.key and chosen.keeps_prefixes:  # else home is its own
            self._hot.went(affinity, chosen.name)
        return decision

    def candidates(self, model: str, providers: tuple[str, ...] = ()) -> Candidates:
        """Filtered once for each change of the pool: what filters look at changes no faster."""
        if self._version != self._pool.version:
            self._forget_candidates()
        key = (model, providers) if providers else model
        candidates = self._candidates.get(key)
        if candidates is None:
            wanted = RoutingRequest(model, NO_AFFINITY, providers=providers)
            kept = self._profile.candidates(wanted, self._pool.endpoints())
            healthy = [endpoint for endpoint in kept if not endpoint.is_ejected]
            candidates = Candidates(healthy or kept, self._pool.ring)  # never all of them
            candidates.is_blind = self._pool.is_blind
            candidates.follow()
            self._candidates[key] = candidates
        return candidates

    def expect(
        self, request_id: str, text: PromptText, num_tokens: int, endpoint: Endpoint
    ) -> None:
        """The request is on its way there, and what its prompt is in blocks will be told."""
        if self._index is not None:
            self._index.expect(request_id, text, num_tokens, endpoint.block_bit)

    def served(
        self, affinity: Affinity, replica: str, *, prompt_tokens: int, cached_tokens: int
    ) -> None:
        """What of a prompt was found there.  What was sent elsewhere tells nothing of its home."""
        if replica == self._pool.ring.home(ring_point(affinity.key)):
            self._reuse.learn(affinity, prompt_tokens=prompt_tokens, cached_tokens=cached_tokens)

    def tick(self) -> None:
        """About once a second."""
        self._hot.tick()
        for candidates in self._candidates.values():
            candidates.is_blind = self._pool.is_blind
            candidates.look()

    def _forget_candidates(self) -> None:
        self._candidates.clear()
        self._version = self._pool.version
        for endpoint in self._pool.endpoints():
            endpoint.sums.clear()
