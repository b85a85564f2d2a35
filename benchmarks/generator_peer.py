"""The load generator beside a peer: do both tell the same of one server?

``python -m benchmarks.generator --peer PATH/TO/guidellm`` prints it.  guidellm (0.8, from PyPI, in
an environment of its own) and ``pandal bench`` send the same prompts
at the same constant rate to a server that streams to a metronome, in turn, and in the other order
in every second round.  Beside the difference of the two stands how much rounds of one and the same
tool differ: a difference within that is noise.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.stepping_server import stepping_server
from pandal.bench.text import words

TTFT_S = 0.1
GAP_S = 0.02
OUTPUT_TOKENS = 32
PROMPT_TOKENS = 64
PATIENCE_S = 180.0  # to import it takes a minute on a busy machine

Figures = dict[str, float]  # milliseconds, by name
Measure = Callable[[str, Path], Figures]


@dataclass(frozen=True, slots=True)
class Load:
    rate_per_s: float
    num_requests: int

    def write(self, folder: Path) -> None:
        """The same prompts in the form that each of the two reads."""
        prompts = [words(PROMPT_TOKENS, "peer", n) for n in range(self.num_requests)]
        for name, lines in (("peer", map(_peers, prompts)), ("ours", map(_ours, prompts))):
            (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(x)}\n" for x in lines))


def _peers(prompt: str) -> dict[str, object]:
    return {"prompt": prompt, "output_tokens_count": OUTPUT_TOKENS}


def _ours(prompt: str) -> dict[str, object]:
    return {
        "messages": [{"role": "user", "content": prompt}],
        "output_tokens": OUTPUT_TOKENS,
    }


def run(command: list[str], **environment: str) -> None:
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run(
        command,
        check=True,
        timeout=PATIENCE_S,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=kept | environment,
    )


def guidellm(program: str, load: Load) -> Measure:
    def measure(url: str, folder: Path) -> Figures:
        out = folder / "peer.json"
        backend = f"kind=openai_http,target={url},model=default"
        command = [program, "run", "--disable-console-interactive"]
        command += ["--backend", f"{backend},request_format=/v1/chat/completions"]
        command += ["--profile", f"kind=constant,rate={load.rate_per_s:g}"]
        command += ["--constraint", f"kind=max_requests,count={load.num_requests}"]
        command += ["--data", f"kind=json_file,path={folder / 'peer.jsonl'}"]
        command += ["--output", f"kind=json,path={out}"]
        run(command, HF_HUB_OFFLINE="1")
        metrics = json.loads(out.read_text())["benchmarks"][0]["metrics"]

        def of(name: str, point: str) -> float:
            found = metrics[name]["successful"]
            if found["count"] < 0.9 * load.num_requests:  # it leaves out some at its end
                raise RuntimeError(f"guidellm completed {found['count']} requests")
            return float(found["percentiles"][point])

        return {
            "TTFT p50": of("time_to_first_token_ms", "p50"),
            "TTFT p95": of("time_to_first_token_ms", "p95"),
            "ITL p50": of("inter_token_latency_ms", "p50"),
            "end to end p50": of("request_latency", "p50") * 1e3,
            "end to end p95": of("request_latency", "p95") * 1e3,
        }

    return measure


def pandal_bench(load: Load) -> Measure:
    def measure(url: str, folder: Path) -> Figures:
        out = folder / "ours.json"
        command = [sys.executable, "-m", "pandal", "bench", "--url", url, "--out", str(out)]
        command += ["--workload", "trace", "--trace", str(folder / "ours.jsonl")]
        command += ["--arrivals", "constant", "--rate", f"{load.rate_per_s:g}"]
        command += ["--requests", str(load.num_requests), "--exact-lengths"]
        run(command, PYTHONPATH=str(Path(__file__).parents[1]))
        total = json.loads(out.read_text())["total"]
        if total["outcomes"] != {"completed": load.num_requests}:
            raise RuntimeError(f"pandal bench: {total['outcomes']}")
        latency = total["latency"]
        return {
            "TTFT p50": latency["ttft_s"]["p50"] * 1e3,
            "TTFT p95": latency["ttft_s"]["p95"] * 1e3,
            "ITL p50": latency["itl_s"]["p50"] * 1e3,
            "end to end p50": latency["e2e_s"]["p50"] * 1e3,
            "end to end p95": latency["e2e_s"]["p95"] * 1e3,
        }

    return measure


def rounds_of(tools: dict[str, Measure], num_rounds: int, load: Load) -> dict[str, list[Figures]]:
    found: dict[str, list[Figures]] = {name: [] for name in tools}
    with tempfile.TemporaryDirectory() as name, stepping_server(TTFT_S, GAP_S) as url:
        load.write(Path(name))
        for round_ in range(num_rounds):
            for tool in list(tools)[:: 1 if round_ % 2 == 0 else -1]:
                print(f"round {round_ + 1} of {num_rounds}: {tool}", file=sys.stderr, flush=True)
                found[tool].append(tools[tool](url, Path(name)))
    return found


def table(found: dict[str, list[Figures]]) -> Iterator[str]:
    ours, peers = found["pandal bench"], found["guidellm"]
    yield "| ms | server | pandal bench | guidellm | difference | rounds differ by |"
    yield "|---|---|---|---|---|---|"
    own = {"TTFT": TTFT_S, "ITL": GAP_S, "end to end": TTFT_S + (OUTPUT_TOKENS - 1) * GAP_S}
    for name in ours[0]:
        a, b = (statistics.median(figures[name] for figures in tool) for tool in (ours, peers))
        noise = max(
            max(f[name] for f in tool) - min(f[name] for f in tool) for tool in (ours, peers)
        )
        told = own[name.rsplit(" ", 1)[0]] * 1e3
        yield f"| {name} | {told:.1f} | {a:.1f} | {b:.1f} | {a - b:+.1f} | {noise:.1f} |"


def print_comparison(program: str, *, num_rounds: int) -> None:
    load = Load(rate_per_s=5.0, num_requests=60)
    tools = {"pandal bench": pandal_bench(load), "guidellm": guidellm(program, load)}
    found = rounds_of(tools, num_rounds, load)
    print(
        f"\n{load.num_requests} requests at {load.rate_per_s:g}/s, {OUTPUT_TOKENS} tokens each; ",
        end="",
    )
    print(f"medians of {num_rounds} alternated rounds\n")
    print("\n".join(table(found)))
