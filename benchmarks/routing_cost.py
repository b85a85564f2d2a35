"""What one decision costs, in CPU time: the product's own code, and nothing else of a request."""

import random
import time
from collections.abc import Callable, Iterator

from benchmarks.routing_claims import Claims
from gateway.prompt import Affinity, PromptText
from gateway.routing.candidates import Candidates
from gateway.routing.endpoint import Endpoint, RoutingRequest
from gateway.routing.hot_prefixes import HotPrefixes
from gateway.routing.prefix_index import PrefixIndex
from gateway.routing.prefix_reuse import PrefixReuse
from gateway.routing.profiles import RoutingOptions, routing_profile
from gateway.routing.ring import PrefixRing
from gateway.routing.text_chain import BOUNDARIES_BYTES, prompt_text

BLOCK_TOKENS = 16
LONG_TOKENS, BYTES_PER_TOKEN = 32_000, 4
ROUNDS = 7


def microseconds(call: Callable[[int], object], num: int) -> float:
    """Of CPU, the shortest of some rounds."""
    best = float("inf")
    for _ in range(ROUNDS):
        began_s = time.process_time()
        for number in range(num):
            call(number)
        best = min(best, time.process_time() - began_s)
    return best / num * 1e6


class _Pool:
    """Replicas that all have something to do, a tenth of which hold the beginning of a prompt."""

    def __init__(self, num: int) -> None:
        source = random.Random(1)
        self.index = PrefixIndex(10_000_000)
        endpoints = [Endpoint(f"replica-{n}", True, frozenset({"m"})) for n in range(num)]
        for endpoint in endpoints:
            endpoint.load_tokens = source.randrange(5_000, 9_000)
            endpoint.block_bit = self.index.blocks.enter()
        self.group = Candidates(endpoints, PrefixRing(e.name for e in endpoints))
        self.group.follow()
        options = RoutingOptions(load_factor=1.3, least_prefix_tokens=64)
        reuse = PrefixReuse(source.random)
        self.ring = routing_profile(options, HotPrefixes(), reuse, source.random)
        self.exact = routing_profile(options, HotPrefixes(), reuse, source.random, self.index)
        self.text = prompt_text(b"seed", source.randbytes(LONG_TOKENS * BYTES_PER_TOKEN))
        for endpoint in endpoints[: max(2, num // 10)]:
            self._hold(endpoint.block_bit, source.randrange(8_000, LONG_TOKENS))

    def _hold(self, bit: int, num_tokens: int) -> None:
        """Blocks are numbered from one."""
        num_blocks = num_tokens // BLOCK_TOKENS
        for key in range(1, num_blocks + 1):
            self.index.blocks.store(bit, key, key - 1)
        num_bytes = num_tokens * BYTES_PER_TOKEN
        links = sum(end <= num_bytes for end in BOUNDARIES_BYTES)
        held = PromptText(self.text.chain[:links], num_bytes)
        self.index.anchors.learn(held, num_tokens, num_blocks, BLOCK_TOKENS)


def _requests(pool: _Pool) -> list[RoutingRequest]:
    keys = [b"tenant and a system prompt of some length " * 8 + b"%d" % n for n in range(512)]
    chain = pool.text.chain
    return [RoutingRequest("m", Affinity(key, key), LONG_TOKENS, 32_400, chain) for key in keys]


def cost_table(claims: Claims, *, is_quick: bool) -> Iterator[str]:
    num = 500 if is_quick else 4_000
    yield "\n| replicas | ring µs | exact µs, 32,000 tokens | least tokens µs |\n|---|---|---|---|"
    for num_replicas in (4, 64, 1_000):
        ring, exact, least = _costs(_Pool(num_replicas), num)
        if num_replicas == 64:
            claims.cost("a ring decision among 64", ring, 10.0)
            claims.cost("an exact decision among 64", exact, 60.0)
        yield f"| {num_replicas} | {ring:.1f} | {exact:.1f} | {least:.1f} |"
    yield from _lookup(claims, num)


def _costs(pool: _Pool, num: int) -> tuple[float, float, float]:
    requests, group = _requests(pool), pool.group
    size = len(requests)
    short = RoutingRequest("m", Affinity(b"", b""), 1, 100)
    return (
        microseconds(lambda n: pool.ring.decide(requests[n % size], group), num),
        microseconds(lambda n: pool.exact.decide(requests[n % size], group), num),
        microseconds(lambda n: pool.ring.decide(short, group), num),
    )


def _lookup(claims: Claims, num: int) -> Iterator[str]:
    pool = _Pool(64)
    text = random.Random(2).randbytes(LONG_TOKENS * BYTES_PER_TOKEN)
    find, chain, bits = pool.index.anchors.find, pool.text.chain, pool.group.bits
    found = microseconds(lambda _: find(chain, bits), num)
    # A new text each time: its hash is not remembered.
    texts = [b"%06d" % n + text for n in range(64)]
    hashed = microseconds(lambda n: prompt_text(b"seed", texts[n % 64]), max(64, num // 20))
    claims.cost("looking a prompt of 32,000 tokens up", found, 50.0)
    yield f"\nA prompt of 32,000 tokens, 128 KB: {hashed:.1f} µs to hash, {found:.1f} to look up."
