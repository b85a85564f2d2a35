"""Predicted against actual time to first token, on a local fleet of two real replicas.

    python -m benchmarks.ttft_prediction [--seconds 40] [--warm-up 20] [--per-second 2.5]

Conversations come at random, by ``pandal bench``: their turns' prompts grow.  The errors are the
gateway's own metric, of what came after the warm-up: |predicted - actual| / actual.
"""

import argparse
import json
import re
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from benchmarks.bench_process import bench
from benchmarks.local_fleet import PANDAL, START_PATIENCE_S
from benchmarks.waiting import wait_until
from contracts import metrics
from contracts.admission import AdmissionPolicy
from contracts.policy import decode_policy_document, encode_policy_document

PERCENTILES = (0.5, 0.9, 0.95)
FORECASTING = AdmissionPolicy(ttft_target_ms=600_000)  # nobody is held back: all is measured


@contextmanager
def fleet(folder: Path, port: int, replicas: Sequence[str] = ("--replicas", "2")) -> Iterator[str]:
    """The gateway's URL, of ``pandal up`` with those."""
    with (folder / "screen.log").open("wb") as log:
        command = [*PANDAL, "up", *replicas, "--port", str(port), "--data-dir", str(folder)]
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            wait_until(lambda: _serves(process, folder), "the fleet", START_PATIENCE_S)
            state = json.loads((folder / "fleet.json").read_bytes())
            yield str(state["gateway_url"])
        finally:
            process.terminate()
            process.wait(timeout=30)


def tenant_key(folder: Path, tenant: str, admission: AdmissionPolicy) -> str:
    """Of a new tenant, admitted by that; its quota never gets in the way."""
    options = f"--tenant {tenant} --tier gold --tpm 100000000 --rpm 1000000 --data-dir {folder}"
    command = [*PANDAL, "keys", "create", "--json", *options.split()]
    created = subprocess.run(command, check=True, capture_output=True)
    path = folder / "policies.json"
    document = decode_policy_document(path.read_bytes())
    tenants = tuple(
        msgspec.structs.replace(t, admission=admission) if t.tenant_id == tenant else t
        for t in document.tenants
    )
    changed = msgspec.structs.replace(document, version=document.version + 1, tenants=tenants)
    path.with_suffix(".new").write_bytes(encode_policy_document(changed))
    path.with_suffix(".new").replace(path)
    return str(json.loads(created.stdout)["api_key"])


def _serves(process: "subprocess.Popen[bytes]", folder: Path) -> bool:
    screen = (folder / "screen.log").read_text()
    if process.poll() is not None:
        raise RuntimeError(screen)
    return "serving on" in screen


def options(*, seconds: float, per_second: float, seed: int) -> list[str]:
    """Conversations: prompts that grow, and share what came before; nobody is held back."""
    what = "--workload chat --output-tokens 20 --set turns=3 --exact-lengths"
    when = f"--rate {per_second} --duration-s {seconds} --seed {seed}"
    return [*what.split(), *when.split()]


def errors(url: str) -> Mapping[float, int]:
    """Cumulative counts by upper bound."""
    with urllib.request.urlopen(f"{url}/metrics") as answer:
        text = answer.read().decode()
    found = re.findall(rf'^{metrics.GATEWAY_TTFT_ERROR}_bucket{{le="(.+)"}} (\d+)$', text, re.M)
    return {float(bound): int(count) for bound, count in found}


def percentile(before: Mapping[float, int], after: Mapping[float, int], ratio: float) -> float:
    """The upper bound of its bucket."""
    counts = {bound: after[bound] - before[bound] for bound in after}
    return min(bound for bound, count in counts.items() if count >= ratio * counts[float("inf")])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--warm-up", type=float, default=20.0)
    parser.add_argument("--per-second", type=float, default=2.5)
    parser.add_argument("--port", type=int, default=18_180)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, fleet(Path(folder), given.port) as url:
        key, rate = tenant_key(Path(folder), "bench", FORECASTING), given.per_second
        bench(url, key, options(seconds=given.warm_up, per_second=rate, seed=1))
        before = errors(url)
        report = bench(url, key, options(seconds=given.seconds, per_second=rate, seed=2))
        after = errors(url)
    ttft_s = report.total.latency.ttft_s
    assert ttft_s is not None, "nothing was served"
    num = after[float("inf")] - before[float("inf")]
    print(f"{ttft_s.num} requests, {num} predicted; ", end="")
    print(f"TTFT p50 {ttft_s.p50:.2f} s, p95 {ttft_s.p95:.2f} s")
    for bound in after:
        share = (after[bound] - before[bound]) / max(1, num)
        print(f"  error <= {bound:4}: {100 * share:5.1f} %")
    for ratio in PERCENTILES:
        print(f"  p{100 * ratio:.0f} error <= {percentile(before, after, ratio)}")


if __name__ == "__main__":
    main()
