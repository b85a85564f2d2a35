"""How many chunks a second the load generator reads on one core, and what it says of itself.

    python -m benchmarks.generator [--streams 100 200 400]

A server in another process writes a chunk to every stream each GAP_S, as an engine's step does.
The server is the same language and soon the slower half: a row whose rate is below streams / GAP_S
is the server's limit, not the generator's.  The generator's cost is its processor time per chunk.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import httptools
import uvloop

GAP_S = 0.02
NUM_CHUNKS = 250  # five seconds a stream
DELTA = {"index": 0, "delta": {"content": "word "}, "logprobs": None, "finish_reason": None}
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def event(body: object) -> bytes:
    payload = f"data: {json.dumps(body)}\n\n".encode()
    return b"%x\r\n%b\r\n" % (len(payload), payload)


CHUNK = event({"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [DELTA]})
USAGE = {"prompt_tokens": 10, "completion_tokens": NUM_CHUNKS}
END = event({"choices": [], "usage": USAGE}) + b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"


class Steps(asyncio.Protocol):
    """Answers each request with NUM_CHUNKS chunks, GAP_S apart."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._parser = httptools.HttpRequestParser(self)
        self._loop = asyncio.get_running_loop()

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        self._transport.write(HEAD)
        self._next_s = self._loop.time() + GAP_S
        self._loop.call_at(self._next_s, self._step, NUM_CHUNKS)

    def _step(self, num_left: int) -> None:
        self._transport.write(CHUNK)
        if num_left == 1:
            self._transport.write(END)
            return
        self._next_s += GAP_S  # a late step does not make all later ones late
        self._loop.call_at(self._next_s, self._step, num_left - 1)


async def serve() -> None:
    server = await asyncio.get_running_loop().create_server(Steps, "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def measure(url: str, num_streams: int, out: Path) -> dict[str, object]:
    command = [sys.executable, "-m", "pandal", "bench", "--url", url, "--out", str(out)]
    command += ["--workload", "fixed", "--prompt-tokens", "10", "--output-tokens", str(NUM_CHUNKS)]
    command += ["--concurrency", str(num_streams), "--requests", str(num_streams)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return dict(json.loads(out.read_bytes())["generator"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, nargs="+", default=[100, 200, 400])
    chosen = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.generator", "--serve"],
            stdout=subprocess.PIPE,
            text=True,
        ) as server,
    ):
        assert server.stdout is not None
        url = f"http://127.0.0.1:{int(server.stdout.readline())}"
        print(f"{os.cpu_count()} cores, one for the generator at most")
        print("| streams | offered chunks/s | read | core busy | us a chunk | loop late p99 ms | |")
        print("|---|---|---|---|---|---|---|")
        try:
            for num_streams in chosen.streams:
                row = measure(url, num_streams, Path(folder) / "report.json")
                print_row(num_streams, row)
        finally:
            server.kill()


def print_row(num_streams: int, row: dict[str, object]) -> None:
    rate, cpu_ratio = float(str(row["chunks_per_s"])), float(str(row["cpu_ratio"]))
    lag_ms = float(str(row["loop_lag_p99_s"])) * 1e3
    verdict = "says it was the bottleneck" if row["is_bottleneck"] else "kept up"
    print(
        f"| {num_streams} | {num_streams / GAP_S:.0f} | {rate:.0f} | {cpu_ratio:.0%} | "
        f"{cpu_ratio / rate * 1e6:.1f} | {lag_ms:.1f} | {verdict} |"
    )


if __name__ == "__main__":
    if sys.argv[1:] == ["--serve"]:
        uvloop.run(serve())
    else:
        main()
