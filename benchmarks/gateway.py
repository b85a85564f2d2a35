"""The gateway beside its peers: one core each, in turn, in one run.

    python benchmarks/gateway.py [--seconds 3] [--spool DIR] [--only NAME] [--streams]

The gateway under test has core 0; its load, its upstream and its quota store have core 1 (on a
machine of two cores nothing else should run).  Load and upstream are C (gateway_load.c,
gateway_upstream.c), compiled here: nothing in Python would saturate what is measured.  The spool is
where --spool says, a temporary folder by default: its disk's sync decides the rate of
``durability: commit`` at few connections.
"""

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gateway_peers as peers

HERE = Path(__file__).parent
GATEWAY_CORE, LOAD_CORE = "0", "1"
WARM_UP_S = 1.0


def compile_tools(folder: Path) -> None:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        sys.exit("a C compiler is needed for the load and the upstream; none is installed")
    for name in ("gateway_load", "gateway_upstream"):
        command = [compiler, "-O2", "-o", str(folder / name), str(HERE / f"{name}.c")]
        subprocess.run(command, check=True)


def write_request(path: Path, prompt_bytes: int, **members: object) -> None:
    content = "The second node's disk filled up at noon. " * (prompt_bytes // 41 + 1)
    messages = [{"role": "user", "content": content[:prompt_bytes]}]
    body = json.dumps({"model": "mock", "messages": messages, "max_tokens": 64, **members}).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\ncontent-type: application/json\r\n"
        f"authorization: Bearer {peers.KEY}\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    path.write_bytes(head.encode() + body)


def free_ports() -> dict[str, int]:
    """Eight in a row for the upstream, and some for the peer; below those that clients get."""
    for first in range(20_000 + os.getpid() % 500 * 20, 32_000, 20):
        if all(_is_free(port) for port in range(first, first + 14)):
            return {"upstream": first, "peer": first + 11}
    raise RuntimeError("no fourteen free ports in a row")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def cpu_s(pid: int) -> float:
    """Of all threads, and of the workers it has started, from the scheduler's own count."""
    tasks = list(Path(f"/proc/{pid}/task").iterdir())
    own_s = sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9
    children = [int(child) for task in tasks for child in (task / "children").read_text().split()]
    return own_s + sum(cpu_s(child) for child in children)


def rss_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


class Bench:
    def __init__(self, folder: Path, seconds: float) -> None:
        self.folder = folder
        self.seconds = seconds
        self.ports = free_ports()

    @contextmanager
    def upstream(self, num_chunks: int = 50, pace_us: int = 0) -> Iterator[None]:
        self.ports = free_ports()
        command = [str(self.folder / "gateway_upstream"), str(self.ports["upstream"])]
        command += [str(peers.NUM_UPSTREAMS), str(num_chunks), str(pace_us)]
        with peers.stopped(peers.pinned(LOAD_CORE, command)):
            yield

    def load(self, request: str, connections: int, seconds: float, rate: float = 0) -> Any:
        command = ["taskset", "-c", LOAD_CORE, str(self.folder / "gateway_load")]
        command += [str(self.ports["peer"]), str(self.folder / request), str(connections)]
        command += [str(seconds), str(rate)]
        return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)

    def measure(self, pid: int, request: str, connections: int, rate: float = 0) -> dict[str, Any]:
        self.load(request, connections, WARM_UP_S, rate)
        before_s = cpu_s(pid)
        result: dict[str, Any] = self.load(request, connections, self.seconds, rate)
        used_us = (cpu_s(pid) - before_s) * 1e6
        result["cpu_us"] = used_us / max(1, result["num_sent"])
        result["cpu_us_per_event"] = used_us / max(1, result["num_events"])
        result["cpu_ratio"] = used_us / 1e6 / self.seconds
        return result


DOCUMENT_CELLS = [  # name, request, connections, requests per second (0: as many as there may be)
    ("1 KB, 16 connections", "small", 16, 0),
    ("1 KB, 64 connections", "small", 64, 0),
    ("1 KB, 256 connections", "small", 256, 0),
    ("16 KB, 16 connections", "large", 16, 0),
    ("1 KB at 2,000/s", "small", 64, 2_000),
    ("1 KB at 5,000/s", "small", 64, 5_000),
]
STREAM_CELLS = [  # name, connections, requests per second, chunks, pace in microseconds
    ("50 chunks at once, 16 connections", 16, 0, 50, 0),
    ("1,000 streams of 20 chunks/s", 1_000, 0, 60, 50_000),
]


def row(peer: str, cell: str, result: dict[str, Any], pid: int) -> str:
    latency = result["latency_us"]
    return (
        f"| {peer} | {cell} | {result['requests_per_s']:,.0f} | {result['cpu_us']:.0f} "
        f"| {result['cpu_ratio']:.0%} | {latency['p50']:,.0f} / {latency['p99']:,.0f} "
        f"| {result['num_failed']} | {rss_mb(pid):.0f} |"
    )


def measure_documents(bench: Bench, peer: peers.Peer) -> dict[str, float]:
    """Prints a row for each cell; the rates of the saturated ones."""
    rates = {}
    with bench.upstream(), tempfile.TemporaryDirectory(dir=bench.folder) as name:
        folder = Path(name)
        with (
            peers.store(folder, LOAD_CORE),
            peers.running(peer, folder, bench.ports, GATEWAY_CORE) as process,
        ):
            for cell, request, connections, rate in DOCUMENT_CELLS:
                result = bench.measure(process.pid, request, connections, rate)
                print(row(peer.name, cell, result, process.pid), flush=True)
                if rate == 0:
                    rates[cell] = result["requests_per_s"]
    return rates


def measure_streams(bench: Bench, peer: peers.Peer) -> None:
    for cell, connections, rate, num_chunks, pace_us in STREAM_CELLS:
        seconds, bench.seconds = bench.seconds, max(bench.seconds, 4.0)
        with (
            bench.upstream(num_chunks, pace_us),
            tempfile.TemporaryDirectory(dir=bench.folder) as name,
            peers.store(Path(name), LOAD_CORE),
            peers.running(peer, Path(name), bench.ports, GATEWAY_CORE) as process,
        ):
            result = bench.measure(process.pid, "stream", connections, rate)
            first, delay = result["first_byte_us"], result["event_delay_us"]
            print(
                f"| {peer.name} | {cell} | {result['num_events'] / bench.seconds:,.0f} "
                f"| {result['cpu_us_per_event']:.1f} | {result['cpu_ratio']:.0%} "
                f"| {first['p50']:,.0f} / {first['p99']:,.0f} "
                f"| {delay['p50']:,.0f} / {delay['p99']:,.0f} / {delay['max']:,.0f} "
                f"| {rss_mb(process.pid):.0f} |",
                flush=True,
            )
        bench.seconds = seconds


def print_ratios(rates: dict[str, dict[str, float]]) -> None:
    base = rates.get("ours, relaxed")
    if base is None:
        return
    print("\nRequests per second of 'ours, relaxed' over each:")
    for name, cells in rates.items():
        ratios = ", ".join(f"{cell} {base[cell] / max(1, r):.2f}" for cell, r in cells.items())
        print(f"  {name}: {ratios}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--spool", type=Path, default=None, help="where spools are written")
    parser.add_argument("--only", default="", help="peers whose name holds this")
    parser.add_argument("--streams", action="store_true", help="streams instead of documents")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.spool) as name:
        folder = Path(name)
        compile_tools(folder)
        write_request(folder / "small", 900)
        write_request(folder / "large", 16_000)
        write_request(folder / "stream", 900, stream=True)
        bench = Bench(folder, options.seconds)
        chosen = [peer for peer in peers.installed() if options.only in peer.name]
        if options.streams:
            print(
                "| gateway | cell | chunks/s | us/chunk | core | first byte p50 / p99 us "
                "| chunk delay p50 / p99 / max us | MB |\n|---|---|---|---|---|---|---|---|"
            )
            for peer in chosen:
                measure_streams(bench, peer)
            return
        print(
            "| gateway | cell | req/s | us CPU/req | core | p50 / p99 us | failed | MB |\n"
            "|---|---|---|---|---|---|---|---|"
        )
        print_ratios({peer.name: measure_documents(bench, peer) for peer in chosen})


if __name__ == "__main__":
    main()
