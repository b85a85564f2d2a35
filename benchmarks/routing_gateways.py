"""Gateways before the simulated fleet: the product's own decisions, beside simpler ones."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.routing_cache_aware import CacheAware
from benchmarks.routing_fleet import SimulatedReplica, load_report
from benchmarks.routing_traffic import Prompt
from gateway.prompt import Affinity
from gateway.routing.candidates import Candidates
from gateway.routing.decision import Decision, Reason, Scores
from gateway.routing.endpoint import Endpoint, RoutingRequest
from gateway.routing.hot_prefixes import HotPrefixes
from gateway.routing.others_load import OthersLoad, neutral_tokens
from gateway.routing.pickers.least_cost import LeastCost
from gateway.routing.prefix_index import PrefixIndex
from gateway.routing.prefix_reuse import PrefixReuse
from gateway.routing.profile import RoutingProfile, Scorer
from gateway.routing.profiles import RoutingOptions, routing_profile
from gateway.routing.ring import PrefixRing, ring_point
from gateway.routing.scorers.least_tokens import LeastTokens

SLOW_START_S = 20.0
EXPECTED_OUTPUT = 40
LOAD_FACTOR = 1.3  # as usual: ``Settings.routing_load_factor``
NO_BOUND = 1e9


class RoundRobin:
    name = "round_robin"

    def __init__(self) -> None:
        self._next = 0

    def score(self, request: RoutingRequest, group: Candidates) -> Scores:
        self._next += 1
        return Scores((self._next % len(group.endpoints),), (0.0,), Reason.HOME)


class LeastRequests:
    """By this gateway's own count, as public routers do."""

    name = "least_requests"

    def __init__(self, num_open: dict[str, int]) -> None:
        self._num_open = num_open

    def score(self, request: RoutingRequest, group: Candidates) -> Scores:
        costs = [float(self._num_open[endpoint.name]) for endpoint in group.endpoints]
        return Scores(range(len(costs)), costs, Reason.NO_PREFIX)


@dataclass(eq=False)
class _Known:
    """What one gateway knows of one replica."""

    endpoint: Endpoint
    others: OthersLoad
    num_open: int = 0
    others_tokens: int = 0
    joined_s: float = -1e9


Build = Callable[["Gateway", random.Random], Scorer | None]


class Gateway:
    def __init__(self, policy: str, source: random.Random) -> None:
        self.index = PrefixIndex(10_000_000) if policy == "exact" else None
        self.num_open: dict[str, int] = {}
        self._hot = HotPrefixes()
        self._reuse = PrefixReuse(source.random)
        self._known: dict[str, _Known] = {}
        self._ring = PrefixRing()
        self._group = Candidates([], self._ring)
        self._profile = self._profile_of(policy, source)

    def _profile_of(self, policy: str, source: random.Random) -> RoutingProfile:
        simple: dict[str, Scorer] = {
            "round robin": RoundRobin(),
            "least requests": LeastRequests(self.num_open),
            "least tokens": LeastTokens(source.random),
            "cache aware": CacheAware(self.num_open),
        }
        if policy in simple:
            return RoutingProfile([], simple[policy], LeastCost(source.random))
        factor = NO_BOUND if policy == "ring" else LOAD_FACTOR
        options = RoutingOptions(factor, least_prefix_tokens=64)
        return routing_profile(options, self._hot, self._reuse, source.random, self.index)

    def join(self, name: str, bit: int, now_s: float) -> None:
        endpoint = Endpoint(name, True, frozenset({"m"}), block_bit=bit)
        known = self._known[name] = _Known(endpoint, OthersLoad())
        if now_s > 0.0:
            known.joined_s, endpoint.warmth = now_s, 0.0
        self.num_open[name] = 0
        self._regroup()

    def leave(self, name: str) -> None:
        del self._known[name]
        self._regroup()

    def _regroup(self) -> None:
        endpoints = [known.endpoint for known in self._known.values()]
        for endpoint in endpoints:
            endpoint.sums.clear()
        self._ring.set_members(self._known)
        self._group = Candidates(endpoints, self._ring)
        self._group.follow()

    def choose(self, prompt: Prompt) -> Decision:
        request = RoutingRequest(
            "m",
            Affinity(prompt.key, prompt.conversation),
            prompt.num_tokens,
            prompt.num_tokens + EXPECTED_OUTPUT,
            prompt.text.chain,
        )
        decision = self._profile.decide(request, self._group)
        if request.affinity.conversation != request.affinity.key:
            self._hot.went(request.affinity, decision.endpoint.name)
        return decision

    def begin(self, name: str, uncached_tokens: int, prompt: Prompt, request_id: str) -> None:
        self._known[name].endpoint.add_load(uncached_tokens + EXPECTED_OUTPUT)
        self.num_open[name] += 1
        if self.index is not None:
            bit = self._known[name].endpoint.block_bit
            self.index.expect(request_id, prompt.text, prompt.num_tokens, bit)

    def first(self, name: str, uncached_tokens: int) -> None:
        if name in self._known:
            self._known[name].endpoint.add_load(-uncached_tokens)

    def end(self, name: str, prompt: Prompt, cached_tokens: int) -> None:
        if name not in self._known:
            return
        self._known[name].endpoint.add_load(-EXPECTED_OUTPUT)
        self.num_open[name] -= 1
        if name == self._ring.home(ring_point(prompt.key)):
            affinity = Affinity(prompt.key, prompt.conversation)
            self._reuse.learn(
                affinity, prompt_tokens=prompt.num_tokens, cached_tokens=cached_tokens
            )

    def tick(self, replicas: dict[str, SimulatedReplica], now_s: float) -> None:
        """With the reports of all replicas."""
        for name, known in self._known.items():
            load = load_report(replicas[name], "m")
            known.others.report(load, self.num_open[name], now_s)
            known.endpoint.warmth = min(1.0, (now_s - known.joined_s) / SLOW_START_S)
        neutral = neutral_tokens((known.others for known in self._known.values()), now_s)
        for known in self._known.values():
            tokens = known.others.tokens(now_s, neutral or 0.0)
            known.endpoint.add_load(tokens - known.others_tokens)
            known.others_tokens = tokens
        self._hot.tick()
        if self.index is not None:
            for _ in range(10):
                self.index.tick()
        self._group.look()
