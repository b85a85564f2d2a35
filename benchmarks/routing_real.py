"""A small real fleet: two CPU engines, conversations, and what of their prompts they found cached.

    python -m benchmarks.routing_real

Each policy begins with empty caches and gets the same conversations from ``pandal bench``; hits are
the engines' own counters.  Round robin is vLLM's router's, if it is on PATH; what needs nothing
installed is our gateway with prefixes too short to count: least tokens.  The exit status tells
whether exact routing finds at least as much as either.
"""

import re
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.bench_process import bench
from benchmarks.gateway_peers import KEY, store
from benchmarks.local_fleet import MODEL
from benchmarks.replica_process import replica
from benchmarks.routing_peers import ALL_CORES, Policy, router
from contracts import metrics

NUM_REPLICAS = 2
POLICIES = (
    Policy("round robin", "vllm-router", "round_robin"),
    Policy("least tokens", None, "prefix", {"GATEWAY_ROUTING_LEAST_PREFIX_TOKENS": "1000000"}),
    Policy("exact", None, "exact"),
)
TRAFFIC = (
    "--workload chat --prompt-tokens 40 --output-tokens 12 --set turns=4 --set groups=6"
    " --set system_tokens=200 --set pause_s=1 --rate 1.2 --duration-s 22 --seed 1"
)
HIT_SLACK = 0.02


@contextmanager
def fleet() -> Iterator[Sequence[int]]:
    """Ports."""
    with ExitStack() as stack:
        servers = [
            stack.enter_context(replica(model=MODEL, num_threads=1)) for _ in range(NUM_REPLICAS)
        ]
        yield [server.port for server in servers]


def counted(ports: Sequence[int]) -> tuple[float, float]:
    """Prompt tokens that were cached, and all, of the whole fleet."""
    hits = queries = 0.0
    for port in ports:
        told = _counters(port)
        hits += told[metrics.PREFIX_CACHE_HITS]
        queries += told[metrics.PREFIX_CACHE_QUERIES]
    return hits, queries


def _counters(port: int) -> Mapping[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        text = answer.read().decode()
    return {m[1]: float(m[2]) for m in re.finditer(r"^([\w:]+)(?:\{.*\})? (\S+)$", text, re.M)}


def forget(ports: Sequence[int]) -> None:
    """All that is cached."""
    for port in ports:
        asked = urllib.request.Request(f"http://127.0.0.1:{port}/reset_prefix_cache", method="POST")
        with urllib.request.urlopen(asked):
            pass


def measure(policy: Policy, ports: Sequence[int]) -> float:
    """Prints a row; the share of prompt tokens that were cached."""
    forget(ports)
    with (
        tempfile.TemporaryDirectory() as folder,
        store(Path(folder), ALL_CORES),
        router(policy, Path(folder), ports) as url,
    ):
        before = counted(ports)
        report = bench(url, KEY, TRAFFIC.split())
        after = counted(ports)
    ttft_s = report.total.latency.ttft_s
    assert ttft_s is not None, f"nothing was served by {policy.name}"
    ratio = (after[0] - before[0]) / (after[1] - before[1])
    print(
        f"| {policy.name} | {ratio:.1%} | {ttft_s.p50:.2f} | {ttft_s.p95:.2f} | {ttft_s.num} |",
        flush=True,
    )
    return ratio


def measure_real() -> int:
    """The exit status."""
    print(f"Two replicas of {MODEL}, a thread each.\n")
    print("| policy | hit % | TTFT p50 s | p95 s | requests |\n|---|---|---|---|---|")
    with fleet() as ports:
        found = {p.name: measure(p, ports) for p in POLICIES if p.is_there}
    status = 0
    for name, ratio in found.items():
        holds = found["exact"] >= ratio - HIT_SLACK
        status |= not holds
        print(f"{'holds' if holds else 'DOES NOT HOLD'}: exact finds at least as much as {name}")
    return status


if __name__ == "__main__":
    sys.exit(measure_real())
