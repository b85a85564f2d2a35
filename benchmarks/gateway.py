"""The gateway beside its peers: one core each, in turn, several rounds in one run.

    python -m benchmarks.gateway [--rounds 3] [--seconds 2] [--spool DIR] [--only P] [--cells C]

The gateway under test has core 0; its load, its upstream and its quota store have core 1 (on a
machine of two cores nothing else should run).  With more, ``--gateway-cores 0,1 --load-core 2
--workers 2`` adds a gateway of two workers beside those that use one core of the two.

Ours runs on the interpreter that runs this, which matters: one that was built with PGO and LTO, as
those of the images are, takes a quarter less for a request than one that was not.

Load and upstream are C (gateway_load.c, gateway_upstream.c), compiled here: nothing in Python would
saturate what is measured.  The spool is where --spool says, a temporary folder by default: its
disk's sync decides the rate of ``durability: commit`` at few connections.  "direct" is the load on
the upstream itself; latencies are what a gateway adds to it.  A cell is the median of the rounds,
with the least and the most.

A round takes about 25 s and 20 times --seconds for each peer.
"""

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks import gateway_peers as peers

HERE = Path(__file__).parent
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


def processes(pid: int) -> list[int]:
    """It, and the workers it has started."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    children = [int(child) for task in tasks for child in (task / "children").read_text().split()]
    return [pid, *(found for child in children for found in processes(child))]


def cpu_s(pid: int) -> float:
    """Of all threads and workers, from the scheduler's own count."""
    tasks = [task for found in processes(pid) for task in Path(f"/proc/{found}/task").iterdir()]
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def kernel_s(pid: int) -> float:
    """Of that, in system calls and the work that they bring, in hundredths (proc(5))."""
    stats = [Path(f"/proc/{found}/stat").read_text() for found in processes(pid)]
    ticks = sum(int(stat.rpartition(")")[2].split()[12]) for stat in stats)
    return ticks / os.sysconf("SC_CLK_TCK")


def rss_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


@dataclass(frozen=True)
class Cell:
    name: str
    request: str  # the file that holds it
    connections: int
    rate: int = 0  # requests per second; 0: as many as there may be
    num_chunks: int = 50  # of a stream
    pace_us: int = 0  # between two of its chunks; 0: all in one write

    @property
    def is_stream(self) -> bool:
        return self.request == "stream"


CELLS = [  # those of one upstream together
    Cell("1 KB, 16 connections", "small", 16),
    Cell("1 KB, 64 connections", "small", 64),
    Cell("1 KB, 256 connections", "small", 256),
    Cell("16 KB, 64 connections", "large", 64),
    Cell("200 KB (50,000 tokens), 16 connections", "huge", 16),
    Cell("1 KB at 2,000/s", "small", 64, rate=2_000),
    Cell("1 KB at 5,000/s", "small", 64, rate=5_000),
    Cell("streams: 50 chunks at once, 64 connections", "stream", 64),
    Cell("streams: 40/s of 100 chunks/s", "stream", 64, rate=40, pace_us=10_000),
    Cell("streams: 1,000 of 20 chunks/s", "stream", 1_000, num_chunks=60, pace_us=50_000),
    Cell("streams: 800 of 50 chunks/s", "stream", 800, num_chunks=100, pace_us=20_000),
]

Result = dict[str, Any]


class Bench:
    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self.folder = folder
        self.seconds: float = options.seconds
        self.gateway_cores: str = options.gateway_cores
        self.load_core: str = options.load_core
        self.ports = free_ports()

    def measure_all(self, peer: peers.Peer, cells: Sequence[Cell]) -> dict[str, Result]:
        """One round of one peer."""
        results = {}
        for (num_chunks, pace_us), group in groupby(cells, lambda c: (c.num_chunks, c.pace_us)):
            with (
                self._upstream(num_chunks, pace_us),
                tempfile.TemporaryDirectory(dir=self.folder) as name,
                peers.store(Path(name), self.load_core),
                peers.running(peer, Path(name), self.ports, self.gateway_cores) as process,
            ):
                port = peers.served_port(peer, self.ports)
                for cell in group:
                    results[cell.name] = self._measure(process.pid, port, cell)
        return results

    @contextmanager
    def _upstream(self, num_chunks: int, pace_us: int) -> Iterator[None]:
        self.ports = free_ports()
        command = [str(self.folder / "gateway_upstream"), str(self.ports["upstream"])]
        command += [str(peers.NUM_UPSTREAMS), str(num_chunks), str(pace_us)]
        with peers.stopped(peers.pinned(self.load_core, command)):
            yield

    def _measure(self, pid: int, port: int, cell: Cell) -> Result:
        # A paced stream lasts seconds: enough of them must begin and end.
        seconds = max(self.seconds, 4.0) if cell.pace_us else self.seconds
        self._load(port, cell, WARM_UP_S)
        before_s, kernel_before_s = cpu_s(pid), kernel_s(pid)
        result = self._load(port, cell, seconds)
        used_us = (cpu_s(pid) - before_s) * 1e6
        kernel_us = (kernel_s(pid) - kernel_before_s) * 1e6
        num_units = result["num_events"] if cell.is_stream else result["num_sent"]
        return {
            "rate": result["num_events"] / seconds if cell.is_stream else result["requests_per_s"],
            "cpu_us": used_us / max(1, num_units),
            "kernel_us": kernel_us / max(1, num_units),
            "core": used_us / 1e6 / seconds,
            "p50": (result["first_byte_us"] if cell.is_stream else result["latency_us"])["p50"],
            "p99": (result["first_byte_us"] if cell.is_stream else result["latency_us"])["p99"],
            "gap": result["event_delay_us"]["max"] / 1e3,
            "failed": result["num_failed"],
            "mb": rss_mb(pid),
        }

    def _load(self, port: int, cell: Cell, seconds: float) -> Result:
        command = ["taskset", "-c", self.load_core, str(self.folder / "gateway_load")]
        command += [str(port), str(self.folder / cell.request)]
        command += [str(cell.connections), str(seconds), str(cell.rate)]
        result: Result = json.loads(
            subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
        )
        return result


Rounds = dict[str, list[dict[str, Result]]]  # by peer


def of_rounds(rounds: Sequence[dict[str, Result]], cell: Cell, name: str) -> list[float]:
    return [results[cell.name][name] for results in rounds]


def spread(values: Sequence[float], digits: int = 0) -> str:
    """Median (least to most)."""
    middle = f"{statistics.median(values):,.{digits}f}"
    if len(values) == 1:
        return middle
    return f"{middle} ({min(values):,.{digits}f} to {max(values):,.{digits}f})"


def row(peer: str, cell: Cell, rounds: Sequence[dict[str, Result]], base_us: float) -> str:
    def of(name: str) -> list[float]:
        return of_rounds(rounds, cell, name)

    added_ms = [f"{(statistics.median(of(n)) - base_us) / 1e3:.2f}" for n in ("p50", "p99")]
    gap = f"{max(of('gap')):,.0f}" if cell.is_stream else ""
    return (
        f"| {peer} | {spread(of('rate'))} | {spread(of('cpu_us'), 1)} "
        f"| {statistics.median(of('kernel_us')):,.1f} "
        f"| {statistics.median(of('core')):.0%} | {' / '.join(added_ms)} | {gap} "
        f"| {sum(of('failed')):.0f} | {max(of('mb')):.0f} |"
    )


def print_cells(measured: Rounds, cells: Sequence[Cell]) -> None:
    for cell in cells:
        unit, latency = ("chunk", "first byte") if cell.is_stream else ("request", "latency")
        print(f"\n**{cell.name}**\n")
        print(
            f"| gateway | {unit}s/s | us CPU/{unit} | of which kernel | core "
            f"| added {latency} p50 / p99 ms | latest chunk ms "
            "| failed | MB |\n|---|---|---|---|---|---|---|---|---|"
        )
        direct = measured.get("direct")
        base_us = 0.0 if direct is None else statistics.median(of_rounds(direct, cell, "p50"))
        for peer, rounds in measured.items():
            print(row(peer, cell, rounds, base_us))


def print_ratios(measured: Rounds, cells: Sequence[Cell]) -> None:
    ours = measured.get("ours, relaxed")
    if ours is None:
        return
    print("\nSaturated rate of 'ours, relaxed' over each, round by round:")
    for peer, rounds in measured.items():
        for cell in cells:
            if cell.rate == 0 and cell.pace_us == 0:
                pairs = zip(
                    of_rounds(ours, cell, "rate"), of_rounds(rounds, cell, "rate"), strict=True
                )
                ratios = [mine / max(1.0, theirs) for mine, theirs in pairs]
                print(f"  {peer}, {cell.name}: {spread(ratios, 2)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--spool", type=Path, default=None, help="where spools are written")
    parser.add_argument("--only", default="", help="peers whose name holds this")
    parser.add_argument("--cells", default="", help="cells whose name holds this")
    parser.add_argument("--gateway-cores", default="0")
    parser.add_argument("--load-core", default="1")
    parser.add_argument("--workers", type=int, default=1, help="of one more gateway of ours")
    options = parser.parse_args()
    chosen = [peer for peer in peers.installed(options.workers) if options.only in peer.name]
    cells = [cell for cell in CELLS if options.cells in cell.name]
    measured: Rounds = {peer.name: [] for peer in chosen}
    with tempfile.TemporaryDirectory(dir=options.spool) as name:
        folder = Path(name)
        compile_tools(folder)
        write_request(folder / "small", 900)
        write_request(folder / "large", 16_000)
        write_request(folder / "huge", 200_000)
        write_request(folder / "stream", 900, stream=True)
        bench = Bench(folder, options)
        for _ in range(options.rounds):
            for peer in chosen:
                measured[peer.name].append(bench.measure_all(peer, cells))
                print(f"round {len(measured[peer.name])}: {peer.name}", file=sys.stderr)
    print_cells(measured, cells)
    print_ratios(measured, cells)


if __name__ == "__main__":
    main()
