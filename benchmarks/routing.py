"""Routing policies over one simulated fleet and the same traffic; and what a decision costs.

    python -m benchmarks.routing [--quick] [--mix NAME ...] [--policy NAME ...] [--seeds 3]

Replicas are simulated on a virtual clock (real block caches, batched steps, ``routing_fleet``), in
steps as long as the CPU engine's, measured (``routing_steps``: stored, or with ``--calibrate``);
decisions are the product's own code.  Two gateways know each other's load only by reports, once a
second.  The exit status tells whether the claims at the end hold.

``--real`` adds two real replicas (``routing_real``, 90 s), ``--peers`` vLLM's and SGLang's routers
before the fleet as servers (``routing_peers``, minutes).
"""

import argparse
import random
import statistics
import sys
from dataclasses import dataclass, field
from functools import partial

from benchmarks.routing_claims import HEAD, Claims, Row, mean_row
from benchmarks.routing_cost import cost_table
from benchmarks.routing_fleet import (
    BLOCK_TOKENS,
    CACHE_TOKENS,
    BlockCache,
    Clock,
    Job,
    SimulatedReplica,
    StepTimes,
)
from benchmarks.routing_gateways import Gateway
from benchmarks.routing_peers import MIXES as MIXES_OF_PEERS
from benchmarks.routing_peers import POLICIES as POLICIES_OF_PEERS
from benchmarks.routing_peers import QUICK, compare
from benchmarks.routing_real import measure_real
from benchmarks.routing_steps import measured_steps, stored_steps
from benchmarks.routing_traffic import MIXES, Request
from contracts.blocks import PromptStored
from gateway.routing.ring import PrefixRing, ring_point

SIMPLE = ("round robin", "least requests", "least tokens")
POLICIES = (*SIMPLE, "cache aware", "ring", "bounded", "exact")
NUM_REPLICAS = 8
CHANGES = "multi-turn, one dies, one joins"


@dataclass(frozen=True, slots=True)
class Scene:
    times: StepTimes
    until_s: float
    load: float = 1.0  # of the usual arrivals
    warm_up_s: float = 30.0  # not counted
    cache_tokens: int = CACHE_TOKENS  # of each replica
    num_gateways: int = 2


@dataclass(eq=False)
class _World:
    """One run of one policy."""

    policy: str
    seed: int
    scene: Scene
    ttft_s: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    loads: dict[str, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.clock = Clock()
        self.source = random.Random(self.seed)
        self.replicas: dict[str, SimulatedReplica] = {}
        self.gateways = [Gateway(self.policy, self.source) for _ in range(self.scene.num_gateways)]
        self._num_requests = 0
        for number in range(NUM_REPLICAS):
            self.join(f"replica-{number}")

    def join(self, name: str) -> None:
        followers = [
            (gateway.index.blocks, gateway.index.blocks.enter())
            for gateway in self.gateways
            if gateway.index is not None
        ]

        def stored(key: int, parent: int) -> None:
            for blocks, bit in followers:
                blocks.store(bit, key, parent)

        def removed(key: int) -> None:
            for blocks, bit in followers:
                blocks.remove(bit, key)

        cache = BlockCache(self.scene.cache_tokens // BLOCK_TOKENS, stored, removed)
        self.replicas[name] = SimulatedReplica(name, self.clock, cache, self.scene.times)
        self.loads[name] = []
        for number, gateway in enumerate(self.gateways):
            bit = followers[number][1] if followers else 0
            gateway.join(name, bit, self.clock.now_s)

    def die(self, name: str) -> None:
        """Its requests begin anew elsewhere."""
        left = self.replicas.pop(name).die()
        self.loads.pop(name)
        for gateway in self.gateways:
            gateway.leave(name)
        for job in left:
            job.on_end(job)

    def ask(self, request: Request) -> None:
        self.send(request, self.clock.now_s, self.source.choice(self.gateways), has_begun=False)

    def send(self, request: Request, asked_s: float, gateway: Gateway, *, has_begun: bool) -> None:
        """``has_begun``: its first token has come, from a replica that died."""
        prompt = request.prompt
        self._num_requests += 1
        request_id = f"request-{self._num_requests}"
        decision = gateway.choose(prompt)
        name = decision.endpoint.name
        uncached = prompt.num_tokens - min(prompt.num_tokens, int(decision.cached_tokens))
        gateway.begin(name, uncached, prompt, request_id)
        is_counted = asked_s >= self.scene.warm_up_s and not has_begun

        def first(job: Job) -> None:
            gateway.first(name, uncached)
            self._tell(request_id, job)
            if is_counted:
                self.ttft_s.append(self.clock.now_s - asked_s)
                self.prompt_tokens += job.prompt_tokens
                self.cached_tokens += job.cached_tokens

        def end(job: Job) -> None:
            gateway.end(name, prompt, job.cached_tokens)
            if job.num_generated < job.output_tokens:
                is_begun = job.num_left == 0 and job.is_begun
                self.send(request, asked_s, gateway, has_begun=is_begun or has_begun)
            elif (following := request.then()) is not None:
                self.clock.after(following[0], partial(self.ask, following[1]))

        job = Job(prompt.blocks, prompt.num_tokens, request.output_tokens, first, end)
        self.replicas[name].submit(job)

    def _tell(self, request_id: str, job: Job) -> None:
        if not job.blocks:
            return
        stored = PromptStored(
            request_id=request_id,
            hash=f"{job.blocks[-1]:016x}",
            num_tokens=job.prompt_tokens,
            block_size=BLOCK_TOKENS,
        )
        for gateway in self.gateways:
            if gateway.index is not None:
                gateway.index.prompt_stored(stored)

    def tick(self) -> None:
        now_s = self.clock.now_s
        for gateway in self.gateways:
            gateway.tick(self.replicas, now_s)
        if now_s >= self.scene.warm_up_s:
            for name, replica in self.replicas.items():
                self.loads[name].append(replica.outstanding_tokens)
        if now_s < self.scene.until_s:
            self.clock.after(1.0, self.tick)

    def row(self, mix: str) -> Row:
        means = [statistics.fmean(loads) for loads in self.loads.values() if loads]
        ordered = sorted(self.ttft_s)
        return Row(
            mix=mix,
            policy=self.policy,
            hit_ratio=self.cached_tokens / self.prompt_tokens,
            ttft_p50_s=ordered[len(ordered) // 2],
            ttft_p95_s=ordered[len(ordered) * 95 // 100],
            max_over_mean=max(means) / statistics.fmean(means),
            num_requests=len(ordered),
        )


def simulate(mix: str, policy: str, scene: Scene, *, seed: int) -> Row:
    world = _World(policy, seed, scene)
    until_s, is_changing = scene.until_s, mix == CHANGES
    traffic = MIXES["multi-turn" if is_changing else mix]
    for at_s, request in traffic(random.Random(seed), until_s, scene.load):
        world.clock.at(at_s, partial(world.ask, request))
    if is_changing:
        world.clock.at(until_s * 0.4, lambda: world.die("replica-3"))
        world.clock.at(until_s * 0.6, lambda: world.join("replica-8"))
    world.clock.at(1.0, world.tick)
    world.clock.run()
    return world.row(mix)


def keys_moved(num_keys: int = 20_000) -> list[tuple[int, float, float]]:
    """For so many replicas, one more: the share of keys that move, and 1 / N."""
    moved = []
    for num in (4, 8, 64):
        names = [f"replica-{number}" for number in range(num)]
        before, after = PrefixRing(names[:-1]), PrefixRing(names)
        points = [ring_point(b"%d" % number) for number in range(num_keys)]
        changed = sum(before.home(point) != after.home(point) for point in points)
        moved.append((num, changed / num_keys, 1 / num))
    return moved


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="two minutes of an idle machine")
    parser.add_argument("--mix", action="append", choices=[*MIXES, CHANGES])
    parser.add_argument("--policy", action="append", choices=POLICIES)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--load", type=float, default=1.0, help="of the usual arrivals")
    parser.add_argument("--warm-up-s", type=float, default=30.0, help="less: cold caches count")
    parser.add_argument("--cache-tokens", type=int, default=CACHE_TOKENS, help="of a replica")
    parser.add_argument("--gateways", type=int, default=2)
    parser.add_argument("--no-cost", action="store_true", help="skip the cost of decisions")
    parser.add_argument("--calibrate", action="store_true", help="measure this machine's steps")
    parser.add_argument("--real", action="store_true", help="and two real CPU engines")
    parser.add_argument("--peers", action="store_true", help="and other routers, on real ports")
    options = parser.parse_args()
    seeds, until_s = (4, 150.0) if options.quick else (options.seeds, 330.0)
    steps = measured_steps() if options.calibrate else stored_steps()
    scene = Scene(
        steps.times,
        until_s,
        load=options.load * stored_steps().times.usual_s / steps.times.usual_s,
        warm_up_s=options.warm_up_s,
        cache_tokens=options.cache_tokens,
        num_gateways=options.gateways,
    )
    for line in steps.lines():
        print(line)
    claims = Claims()
    print(HEAD)
    for mix in options.mix or [*MIXES, CHANGES]:
        for policy in options.policy or POLICIES:
            rows = [simulate(mix, policy, scene, seed=seed) for seed in range(1, seeds + 1)]
            row = mean_row(rows)
            claims.add(row)
            print(row.line(), flush=True)
    print("\n| replicas | keys moved by one more | 1/N |\n|---|---|---|")
    for num, moved, share in keys_moved():
        claims.moved(num, moved, share)
        print(f"| {num} | {moved:.1%} | {share:.1%} |")
    if not options.no_cost:
        for line in cost_table(claims, is_quick=options.quick):
            print(line)
    claims.judge(SIMPLE)
    status = claims.report()
    if options.real:
        status |= measure_real()
    if options.peers:
        status |= compare(MIXES_OF_PEERS, POLICIES_OF_PEERS, QUICK, num_rounds=1)
    return status


if __name__ == "__main__":
    sys.exit(main())
