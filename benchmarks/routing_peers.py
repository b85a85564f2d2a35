"""Our routing beside vLLM's and SGLang's routers: one fleet, the same traffic, in one run.

    python -m benchmarks.routing_peers [--quick] [--mix NAME ...] [--policy NAME ...] [--rounds 2]

Eight replicas of ``routing_servers`` in one process, new and empty for each run; traffic by
``pandal bench``; hits and loads are what the replicas themselves have counted.  A peer is found by
its executable on PATH (vllm-router, sglang-router); ours also authenticates, meters and settles.
The exit status tells whether the claims at the end hold; peers that are not there are not judged.
vLLM's router's consistent_hash is not among them: it wants a session in each request, and without
one sends all to one replica.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from benchmarks.bench_process import bench
from benchmarks.gateway_peers import KEY, our_environment, status_of, store
from benchmarks.replica_process import Server, free_port, started
from benchmarks.routing_claims import HEAD, Claims, Row, mean_row
from benchmarks.routing_servers import FLEET_PATH, MODEL, Counted
from benchmarks.waiting import wait_until

NUM_REPLICAS = 8
SPEED = 4.0  # of replicas: as if of a small GPU
START_PATIENCE_S = 60.0
TTFT_SLACK = 1.1  # this machine's other processes are part of what is measured
PYTHON = sys.executable
ALL_CORES = f"0-{(os.cpu_count() or 1) - 1}"
ROUTER = "--host 127.0.0.1 --port {port} --worker-startup-check-interval 1 --log-level error"

# Of ``pandal bench``; groups are tenants, each with its own system prompt, popular as Zipf has it.
MIXES = {
    "multi-turn": "--workload chat --prompt-tokens 160 --output-tokens 40 --rate 20"
    " --set turns=5 --set groups=40 --set zipf=0.9 --set system_tokens=160 --set pause_s=2",
    "shared prompts": "--workload chat --prompt-tokens 80 --output-tokens 40 --rate 36"
    " --set turns=1 --set groups=60 --set zipf=0.9 --set system_tokens=1280",
    "retrieval": "--workload rag --prompt-tokens 960 --output-tokens 40 --rate 24"
    " --set documents=400 --set zipf=0.9 --set documents_per_prompt=1 --set system_tokens=64",
    "zipf": "--workload chat --prompt-tokens 120 --output-tokens 40 --rate 104"
    " --set turns=1 --set groups=200 --set zipf=1.2 --set system_tokens=640",
}


@dataclass(frozen=True, slots=True)
class Policy:
    name: str
    executable: str | None = None  # None: ours
    setting: str = ""  # the policy, by its name there
    environment: Mapping[str, str] = field(default_factory=dict)  # more of ours

    @property
    def is_there(self) -> bool:
        return self.executable is None or shutil.which(self.executable) is not None


PEERS = (
    Policy("vllm-router cache_aware", "vllm-router", "cache_aware"),
    Policy("sglang-router cache_aware", "sglang-router", "cache_aware"),
    Policy("vllm-router round_robin", "vllm-router", "round_robin"),
)
POLICIES = (*PEERS, Policy("bounded", None, "prefix"), Policy("exact", None, "exact"))


@dataclass(frozen=True, slots=True)
class Window:
    warm_up_s: float
    duration_s: float


QUICK, USUAL = Window(10.0, 22.0), Window(15.0, 45.0)  # caches are cold at first


@contextmanager
def fleet(window: Window) -> Iterator[Sequence[int]]:
    """Ports."""
    given = (NUM_REPLICAS, SPEED, window.warm_up_s, window.duration_s)
    command = [PYTHON, "-m", "benchmarks.routing_servers", *map(str, given)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield [int(port) for port in process.stdout.readline().split()]
        finally:
            process.kill()


@contextmanager
def router(policy: Policy, folder: Path, ports: Sequence[int]) -> Iterator[str]:
    """Its URL, once it is ready."""
    if policy.executable is None:
        path, command = "/ready", [PYTHON, "-m", "gateway"]
        environment = our_environment(folder, "{port}", ports)
        environment |= {"GATEWAY_ROUTING": policy.setting, **policy.environment}
    else:
        path, environment = "/v1/models", {}
        command = [*_command(policy.executable), *ROUTER.split(), "--policy", policy.setting]
        command += ["--prometheus-port", str(free_port())]
        command += ["--worker-urls", *(f"http://127.0.0.1:{port}" for port in ports)]
    log = folder / "router.log"
    with log.open("wb") as output, started(command, environment, output) as server:
        wait_until(lambda: _answers(server, path, log), policy.name, START_PATIENCE_S)
        yield server.url


def _answers(server: Server, path: str, log: Path) -> bool:
    if server.process.poll() is not None:
        raise RuntimeError(log.read_text())
    return status_of(server.port, path) == 200


def _command(executable: str) -> list[str]:
    return [executable, "launch"] if executable == "sglang-router" else [executable]


def measure(mix: str, policy: Policy, window: Window, seed: int) -> Row:
    when = f"--duration-s {window.duration_s} --warmup-s {window.warm_up_s} --seed {seed}"
    with (
        tempfile.TemporaryDirectory() as folder,
        store(Path(folder), ALL_CORES),
        fleet(window) as ports,
        router(policy, Path(folder), ports) as url,
    ):
        served = bench(url, KEY, [*MIXES[mix].split(), *when.split()], MODEL)
        counted = _counted(ports[0])
    ttft_s = served.total.latency.ttft_s
    assert ttft_s is not None, f"nothing was served by {policy.name}"
    loads = counted.outstanding_tokens
    return Row(
        mix=mix,
        policy=policy.name,
        hit_ratio=counted.cached_tokens / counted.prompt_tokens,
        ttft_p50_s=ttft_s.p50,
        ttft_p95_s=ttft_s.p95,
        max_over_mean=max(loads) / statistics.fmean(loads),
        num_requests=counted.num_requests,
    )


def _counted(port: int) -> Counted:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{FLEET_PATH}") as answer:
        return msgspec.json.decode(answer.read(), type=Counted)


def compare(
    mixes: Iterable[str], policies: Sequence[Policy], window: Window, num_rounds: int
) -> int:
    """Prints rows and claims.  The exit status."""
    claims = Claims(TTFT_SLACK)
    there = [policy for policy in policies if policy.is_there]
    print(HEAD)
    for mix in mixes:
        rows: dict[str, list[Row]] = {}
        for seed in range(1, num_rounds + 1):
            for policy in there:
                rows.setdefault(policy.name, []).append(measure(mix, policy, window, seed))
        for measured in rows.values():
            row = mean_row(measured)
            claims.add(row)
            print(row.line(), flush=True)
    claims.judge([policy.name for policy in PEERS])
    for policy in policies:
        if not policy.is_there:
            print(f"not measured, as {policy.executable} is not on PATH: {policy.name}")
    return claims.report()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="some nine minutes, not thirty")
    parser.add_argument("--mix", action="append", choices=MIXES)
    parser.add_argument("--policy", action="append", choices=[p.name for p in POLICIES])
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    asked = [p for p in POLICIES if options.policy is None or p.name in options.policy]
    window = QUICK if options.quick else USUAL
    return compare(options.mix or MIXES, asked, window, 1 if options.quick else options.rounds)


if __name__ == "__main__":
    sys.exit(main())
