"""How many chunks a second the load generator reads on one core, and what it says of itself.

    python -m benchmarks.generator [--streams 100 200 400] [--peer PATH/TO/guidellm]

With ``--peer`` also whether both tell the same of one server: three minutes together.

A server in another process writes a chunk to every stream each GAP_S, as an engine's step does.
The server is the same language and soon the slower half: a row whose rate is below streams / GAP_S
is the server's limit, not the generator's.  The generator's cost is its processor time per chunk.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.generator_peer import print_comparison
from benchmarks.stepping_server import stepping_server

GAP_S = 0.02
NUM_CHUNKS = 250  # five seconds a stream


def measure(url: str, num_streams: int, out: Path) -> dict[str, object]:
    command = [sys.executable, "-m", "pandal", "bench", "--url", url, "--out", str(out)]
    command += ["--workload", "fixed", "--prompt-tokens", "10", "--output-tokens", str(NUM_CHUNKS)]
    command += ["--concurrency", str(num_streams), "--requests", str(num_streams)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return dict(json.loads(out.read_bytes())["generator"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, nargs="+", default=[100, 200, 400])
    parser.add_argument("--peer", help="the program of guidellm 0.8")
    parser.add_argument("--rounds", type=int, default=3, help="beside the peer")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, stepping_server(GAP_S, GAP_S) as url:
        print(f"{os.cpu_count()} cores, one for the generator at most")
        print("| streams | offered chunks/s | read | core busy | us a chunk | loop late p99 ms | |")
        print("|---|---|---|---|---|---|---|")
        for num_streams in chosen.streams:
            row = measure(url, num_streams, Path(folder) / "report.json")
            print_row(num_streams, row)
    if chosen.peer is not None:
        print_comparison(chosen.peer, num_rounds=chosen.rounds)


def print_row(num_streams: int, row: dict[str, object]) -> None:
    rate, cpu_ratio = float(str(row["chunks_per_s"])), float(str(row["cpu_ratio"]))
    lag_ms = float(str(row["loop_lag_p99_s"])) * 1e3
    verdict = "says it was the bottleneck" if row["is_bottleneck"] else "kept up"
    print(
        f"| {num_streams} | {num_streams / GAP_S:.0f} | {rate:.0f} | {cpu_ratio:.0%} | "
        f"{cpu_ratio / rate * 1e6:.1f} | {lag_ms:.1f} | {verdict} |"
    )


if __name__ == "__main__":
    main()
