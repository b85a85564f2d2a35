"""What is left of a gateway's goodput, memory and patience beyond what its replicas can take.

    python -m benchmarks.overload [--seconds 20] [--factors 0.8 1 2 3]

Before two servers that take an engine's time (``benchmarks.engine_stand_in``): first what they can
take is measured, then ``pandal bench`` offers multiples of it, in an open loop.  Every tenant has a
target for the first token and may not wait; good is what meets it.  Meanwhile somebody asks for
/health twenty times a second.  Refusals are timed apart, in processor time of the gateway, its
kernel's part included, while 400 clients ask without a pause: by quota, and beyond capacity.  There
what is served meanwhile is taken off, at what it takes in the first row.
"""

import argparse
import json
import os
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.bench_process import bench
from benchmarks.engine_stand_in import engine_stand_in
from contracts.admission import AdmissionPolicy
from pandal.bench.report import Section
from tests.gateway.processes import Gateway, Policies, Valkey

NUM_REPLICAS = 2
TARGET_MS = 500
NUM_IMPATIENT = 400
NO_LIMIT = {"tokens_per_minute": 100_000_000, "requests_per_minute": 1_000_000}
_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class HealthProbe:
    """Asks twenty times a second until told to stop."""

    url: str
    latencies_s: list[float] = field(default_factory=list)
    _is_over: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=self._run, name="health")
        thread.start()
        try:
            yield
        finally:
            self._is_over.set()
            thread.join()

    def _run(self) -> None:
        while not self._is_over.wait(0.05):
            began_s = time.monotonic()
            with urllib.request.urlopen(f"{self.url}/health") as answer:
                answer.read()
            self.latencies_s.append(time.monotonic() - began_s)

    def percentile_ms(self, ratio: float) -> float:
        ordered = sorted(self.latencies_s)
        return ordered[min(len(ordered) - 1, int(ratio * len(ordered)))] * 1e3


@dataclass(frozen=True, slots=True)
class Process:
    pid: int

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS_A_SECOND

    def resident_mib(self) -> float:
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024


def options(given: argparse.Namespace, load: str) -> list[str]:
    """Short questions and answers, no two alike; refusals are not followed."""
    what = "--workload lognormal --prompt-tokens 100 --output-tokens 16"
    good = f"--slo-ttft-s {TARGET_MS / 1e3} --slo-tpot-s 1 --retry-after-s 0"
    return f"{what} {good} {load} --duration-s {given.seconds}".split()


def capacity_per_s(url: str, given: argparse.Namespace) -> float:
    """Of all stand-ins, by one that is kept busy."""
    report = bench(url, "none", options(given, "--concurrency 128"))
    return NUM_REPLICAS * report.total.throughput.requests_per_s


def row(factor: float, total: Section, process: Process, probe: HealthProbe) -> float:
    """Good answers a second."""
    ttft_s, good_per_s = total.latency.ttft_s, total.goodput.requests_per_s
    num_served, num_refused = total.outcomes.get("completed", 0), total.refusals.num_refused
    print(
        f"{factor:>7g}{total.num_requests:>9}{num_served:>8}{num_refused:>9}{good_per_s:>8.1f}"
        f"{0 if ttft_s is None else ttft_s.p95 * 1e3:>11.0f}{process.resident_mib():>7.0f}"
        f"{probe.percentile_ms(0.5):>11.1f}{probe.percentile_ms(0.99):>8.1f}"
        f"{max(probe.latencies_s) * 1e3:>8.1f}",
        flush=True,
    )
    return good_per_s


def offered(url: str, per_s: float, given: argparse.Namespace) -> tuple[Section, HealthProbe]:
    probe = HealthProbe(url)
    with probe.running():
        total = bench(url, "sk-rich", options(given, f"--rate {per_s}")).total
    return total, probe


def without_a_pause(
    url: str, key: str, process: Process, served_us: float, given: argparse.Namespace
) -> str:
    """What a refusal takes of the gateway's processor where nearly all that is asked is refused."""
    before_s, probe = process.cpu_s(), HealthProbe(url)
    with probe.running():
        total = bench(url, key, options(given, f"--concurrency {NUM_IMPATIENT}")).total
    num_refused = total.refusals.num_refused
    cpu_us = (process.cpu_s() - before_s) * 1e6
    refusal_us = (cpu_us - served_us * (total.num_requests - num_refused)) / num_refused
    return (
        f"{refusal_us:.0f} us of CPU ({num_refused} of {total.num_requests}; health p99 "
        f"{probe.percentile_ms(0.99):.1f} ms, max {max(probe.latencies_s) * 1e3:.1f}; "
        f"{process.resident_mib():.0f} MiB)"
    )


@contextmanager
def gateway(folder: Path, urls: list[str]) -> Iterator[Gateway]:
    valkey, policies = Valkey(folder), Policies(folder / "policy.json")
    admission = AdmissionPolicy(ttft_target_ms=TARGET_MS)
    policies.add("rich", "sk-rich", admission=admission, **NO_LIMIT)
    policies.add("poor", "sk-poor", **{**NO_LIMIT, "requests_per_minute": 1})
    replicas = [{"name": f"replica-{n}", "url": url} for n, url in enumerate(urls)]
    gateway = Gateway(
        folder,
        quota_url=valkey.url,
        policy_file=policies.path,
        upstreams={},
        GATEWAY_REPLICAS=json.dumps(replicas),
        GATEWAY_POLL_INTERVAL_S="1",
    )
    valkey.start()
    try:
        gateway.start()
        yield gateway
    finally:
        gateway.stop()
        valkey.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=20.0, help="of each row")
    parser.add_argument("--factors", type=float, nargs="+", default=[0.8, 1.0, 2.0, 3.0])
    given = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        urls = [stack.enter_context(engine_stand_in()) for _ in range(NUM_REPLICAS)]
        most_per_s = capacity_per_s(urls[0], given)
        print(f"capacity {most_per_s:.1f} requests/s; target {TARGET_MS} ms")
        running = stack.enter_context(gateway(folder, urls))
        assert running.process is not None
        url, process = f"http://127.0.0.1:{running.port}", Process(running.process.pid)
        print("offered requests  served  refused  good/s  TTFT p95 ms  MiB  ", end="")
        print("health p50 ms, p99, max")
        good: list[float] = []
        served_us: list[float] = []
        for factor in given.factors:
            before_s = process.cpu_s()
            total, probe = offered(url, factor * most_per_s, given)
            served_us.append((process.cpu_s() - before_s) * 1e6 / total.num_requests)
            good.append(row(factor, total, process, probe))
        print(f"goodput at {given.factors[-1]:g}x: {100 * good[-1] / max(good):.0f} % of its peak")
        print(f"an answer: {served_us[0]:.0f} us of CPU")
        for key, what in (("sk-rich", "beyond capacity"), ("sk-poor", "by quota")):
            print(f"a refusal {what}:", without_a_pause(url, key, process, served_us[0], given))


if __name__ == "__main__":
    main()
