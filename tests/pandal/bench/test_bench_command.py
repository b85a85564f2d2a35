"""``pandal bench`` over real HTTP.

What is asserted of times is what must hold on any machine: nothing arrives before it was sent, and
a wait that the server makes is in the figure it belongs to.
"""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.pandal.bench.conftest import StartServer, run_bench

KEY = "sk-never-to-be-seen"
SHORT = ("--workload", "fixed", "--prompt-tokens", "20", "--output-tokens", "5")


def report(*arguments: str, **environment: str) -> dict[str, Any]:
    result = run_bench(*arguments, "--json", **environment)
    assert result.returncode == 0, result.stderr
    return dict(json.loads(result.stdout))


def tenants_file(path: Path, **keys: str) -> Path:
    entries = [
        f'[[tenants]]\nname = "{name}"\napi_key_env = "{var}"\n' for name, var in keys.items()
    ]
    path.write_text("".join(entries))
    return path


def test_latencies_are_the_servers_and_count_from_the_intended_moment(
    start_server: StartServer,
) -> None:
    server = start_server(0.1, 0.02)
    found = report("--url", server.url, *SHORT, "--rate", "20", "--requests", "20")
    latency = found["total"]["latency"]
    assert found["total"]["outcomes"] == {"completed": 20}
    assert latency["ttft_s"]["p50"] >= 0.1
    # Five tokens have four gaps between them; timers may be early by a clock's tick.
    assert latency["tpot_s"]["p50"] >= 0.0199
    assert latency["itl_s"]["num"] == 20 * 4
    assert latency["e2e_s"]["p50"] >= 0.1 + 4 * 0.0199
    for ttft_s, e2e_s in zip(*(found["requests"][n] for n in ("ttft_s", "e2e_s")), strict=True):
        assert 0.1 <= ttft_s < e2e_s
    assert found["requests"]["intended_s"] == sorted(found["requests"]["intended_s"])


def test_a_wait_for_a_place_is_in_the_latency(start_server: StartServer) -> None:
    """Ten requests meant for one moment share one connection: the last waits for nine answers."""
    server = start_server(0.05, 0.0)
    burst = ("--arrivals", "bursts", "--burst-size", "10", "--rate", "10", "--requests", "10")
    found = report("--url", server.url, *SHORT, *burst, "--max-connections", "1")
    assert len(set(found["requests"]["intended_s"])) == 1
    assert sorted(found["requests"]["ttft_s"])[-1] >= 10 * 0.05
    generator = found["generator"]
    assert generator["num_waits_for_a_connection"] == 9
    assert generator["is_bottleneck"]
    assert any("connections" in reason for reason in generator["reasons"])


def test_counts_are_the_servers(start_server: StartServer) -> None:
    server = start_server(0.0, 0.0)
    found = report("--url", server.url, *SHORT, "--rate", "100", "--requests", "30")
    tokens = found["total"]["tokens"]
    assert (tokens["prompt_tokens"], tokens["completion_tokens"]) == (30 * 20, 30 * 5)
    assert len(server.seen()) == 30
    assert found["requests"]["completion_tokens"] == [5] * 30


def test_the_same_seed_sends_the_same_at_any_rate(start_server: StartServer) -> None:
    def prompts(seed: int, rate: int) -> list[str]:
        server = start_server(0.0, 0.0)
        options = ("--seed", str(seed), "--rate", str(rate), "--requests", "12")
        report("--url", server.url, "--workload", "chat", "--set", "pause_s=0", *options)
        return sorted(entry["prompt"] for entry in server.seen())

    first = prompts(1, 50)
    assert first == prompts(1, 200)
    assert first != prompts(2, 50)


def test_chat_turns_meet_the_prefix_cache(start_server: StartServer) -> None:
    server = start_server(0.0, 0.0)
    chat = ("--workload", "chat", "--set", "turns=4", "--set", "pause_s=0.01", "--set", "groups=1")
    found = report("--url", server.url, *chat, "--concurrency", "2", "--requests", "16")
    assert found["total"]["num_requests"] == 16
    assert found["load"]["arrivals"] == "closed"
    assert found["total"]["tokens"]["prefix_hit_ratio"] > 0.5


def test_closed_loop_keeps_as_many_at_a_time(start_server: StartServer) -> None:
    server = start_server(0.05, 0.0)
    found = report("--url", server.url, *SHORT, "--concurrency", "3", "--requests", "9")
    spans = list(zip(*(found["requests"][n] for n in ("intended_s", "e2e_s")), strict=True))
    starts = [start_s for start_s, _ in spans]
    running = [sum(s <= at_s < s + e2e_s for s, e2e_s in spans) for at_s in starts]
    assert max(running) == 3
    assert found["total"]["outcomes"] == {"completed": 9}


def test_retry_after_is_obeyed_to_the_letter(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server(0.0, 0.0)
    keys = {name: f"{name.upper()}_KEY" for name in ("honest", "liar", "silent")}
    path = tenants_file(tmp_path / "tenants.toml", **keys)
    found = report(
        *("--url", server.url, *SHORT, "--rate", "100", "--requests", "30"),
        *("--tenants", str(path)),
        **{variable: name for name, variable in keys.items()},
    )
    by_name = {section["name"]: section for section in found["tenants"]}
    honest, liar, silent = (by_name[name] for name in keys)
    assert honest["refusals"]["honesty_ratio"] == 1.0
    assert honest["outcomes"] == {"completed": honest["num_requests"]}
    assert honest["latency"]["ttft_s"]["p50"] >= 1.0  # the wait is the user's
    assert liar["refusals"]["honesty_ratio"] == 0.0
    assert liar["refusals"]["longest_retry_after_s"] == 1.0
    assert liar["outcomes"] == {"refused": liar["num_requests"]}
    assert silent["refusals"]["num_with_retry_after"] == 0
    assert silent["refusals"]["honesty_ratio"] is None
    assert silent["statuses"] == {"429": silent["num_requests"]}


def test_broken_and_uncounted_answers_are_told(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server(0.0, 0.0)
    path = tenants_file(tmp_path / "tenants.toml", broken="B_KEY", uncounted="U_KEY")
    options = ("--url", server.url, *SHORT, "--rate", "100", "--requests", "20")
    found = report(*options, "--tenants", str(path), B_KEY="broken", U_KEY="uncounted")
    broken, uncounted = found["tenants"]
    assert broken["outcomes"] == {"broken": broken["num_requests"]}
    assert broken["goodput"]["num_good"] == 0
    assert uncounted["tokens"]["num_without_usage"] == uncounted["num_requests"]
    assert uncounted["tokens"]["completion_tokens"] == 5 * uncounted["num_requests"]


def test_neither_keys_nor_prompts_nor_answers_get_out(
    start_server: StartServer, tmp_path: Path
) -> None:
    server = start_server(0.0, 0.0)
    out, html = tmp_path / "r.json", tmp_path / "r.html"
    trace = tmp_path / "t.jsonl"
    trace.write_text(
        '{"at_s":0,"messages":[{"role":"user","content":"xyzzy"}],"output_tokens":3}\n'
    )
    result = run_bench(
        *("--url", server.url, "--workload", "trace", "--trace", str(trace)),
        *("--arrivals", "trace", "--price-usd", "1/2", "--out", str(out), "--html", str(html)),
        PANDAL_BENCH_API_KEY=KEY,
    )
    assert result.returncode == 0, result.stderr
    assert server.seen()[0]["key"] == KEY
    everything = result.stdout + result.stderr + out.read_text() + html.read_text()
    assert not any(secret in everything for secret in (KEY, "xyzzy", "word "))
    assert "TTFT" in result.stdout
    assert "$" in result.stdout


def test_a_search_brackets_what_the_server_keeps(start_server: StartServer, tmp_path: Path) -> None:
    """Every request fails a promise of nothing, and keeps one of an hour."""
    server = start_server(0.0, 0.0)
    search = ("--url", server.url, *SHORT, "--rate", "40", "--duration-s", "0.2", "--find-goodput")
    none = report(*search, "--slo-ttft-s", "0", "--search-s", "0.5")
    assert none["highest_rate_per_s"] is None
    # Of a rate that the generator missed, on a busy machine, nothing is told of the server.
    limits = (none["lowest_failed_rate_per_s"], none["lowest_generator_limit_per_s"])
    assert min(limit for limit in limits if limit is not None) <= 40
    every = report(*search, "--slo-ttft-s", "3600", "--slo-tpot-s", "3600", "--search-s", "0.5")
    assert every["highest_rate_per_s"] >= 40
    assert every["lowest_failed_rate_per_s"] is None
    assert every["best"]["load"]["rate_per_s"] == every["highest_rate_per_s"]


def test_an_overloaded_server_is_told_from_a_slow_generator(start_server: StartServer) -> None:
    """Two slots of a tenth of a second each: twenty a second, and fifty are offered.

    A machine on which the generator itself is late tells nothing, and never that it kept up.
    """
    server = start_server(0.1, 0.0, num_slots=2)
    load = ("--workload", "fixed", "--output-tokens", "1", "--rate", "50", "--duration-s", "3")
    found = report("--url", server.url, *load)
    assert found["server"]["is_overloaded"] is not False
    assert found["server"]["num_in_flight_at_end"] > found["server"]["num_in_flight_at_quarter"]
    assert (
        report("--url", server.url, *load[:-4], "--concurrency", "2", "--requests", "4")["server"]
        is None
    )


def test_two_reports_compare(start_server: StartServer, tmp_path: Path) -> None:
    files = [tmp_path / "a.json", tmp_path / "b.json"]
    for file, ttft_s in zip(files, (0.0, 1.0), strict=True):
        server = start_server(ttft_s, 0.0)
        options = ("--url", server.url, *SHORT, "--rate", "50", "--requests", "30")
        report(*options, "--out", str(file))
    found = report("compare", *map(str, files))
    ttft = next(d for d in found["differences"] if d["metric"] == "TTFT p50")
    assert 0 < ttft["low"] < ttft["high"]
    assert found["is_same_load"]
    assert "A is better" in run_bench("compare", *map(str, files), COLUMNS="200").stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "--rate"),
        (("--rate", "1", "--concurrency", "1"), "--rate"),
        (("--rate", "0"), "--rate"),
        (("--rate", "1", "--set", "turns=2"), "turns"),
        (("--rate", "1", "--workload", "trace"), "--trace"),
        (("--rate", "1", "--price-usd", "cheap"), "--price-usd"),
        (("--rate", "1", "--api-key-file", "/nonexistent/key"), "/nonexistent/key"),
        (("--concurrency", "1", "--find-goodput"), "--rate"),
        (("--rate", "1", "--warmup-s", "30"), "--warmup-s"),
        (("--rate", "1e300"), "--rate"),
        (("--rate", "1", "--duration-s", "1e9"), "--duration-s"),
        (("--concurrency", "99999999999"), "--concurrency"),
        (("--rate", "1", "--requests", "999999999999"), "--requests"),
        (("--rate", "1", "--prompt-tokens", "999999999999"), "prompt_tokens"),
        (("--rate", "1", "--timeout-s", "nan"), "--timeout-s"),
        (("--rate", "1", "--retry-after-s", "nan"), "--retry-after-s"),
        (("--rate", "1", "--out", "/nonexistent/report.json"), "--out"),
    ],
    ids=str,
)
def test_wrong_options_are_told_before_anything_is_sent(
    arguments: tuple[str, ...], message: str
) -> None:
    result = run_bench("--url", "http://127.0.0.1:9", *arguments)
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_nobody_there_is_one_line() -> None:
    result = run_bench("--url", "http://127.0.0.1:9", *SHORT, "--rate", "50", "--requests", "5")
    assert result.returncode == 1
    assert "http://127.0.0.1:9" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_run_without_a_request_is_no_success(start_server: StartServer) -> None:
    burst = ("--arrivals", "bursts", "--burst-size", "1000000", "--rate", "1", "--duration-s", "1")
    result = run_bench("--url", start_server(0.0, 0.0).url, *SHORT, *burst)
    assert result.returncode == 1
    assert "no request was due" in result.stderr


def test_it_says_what_it_does_before_and_while_it_does(start_server: StartServer) -> None:
    server = start_server(8.0, 0.0)  # a line is told after five seconds
    result = run_bench("--url", server.url, *SHORT, "--rate", "50", "--requests", "2")
    first, *others = result.stderr.splitlines()
    assert first.startswith(f"loading default at {server.url}/v1/chat/completions: fixed workload")
    assert "2 sent, 0 done, 2 in flight" in others
    assert "Only 2 requests completed: too few for a p99" in result.stdout


def test_ctrl_c_reports_what_was_measured_so_far(start_server: StartServer, tmp_path: Path) -> None:
    server, out = start_server(0.01, 0.0), tmp_path / "report.json"
    arguments = ("--url", server.url, *SHORT, "--rate", "50", "--duration-s", "600")
    command = (sys.executable, "-m", "pandal", "bench", *arguments, "--out", str(out))
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stderr is not None
        assert "loading" in process.stderr.readline()
        assert "in flight" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        printed, _ = process.communicate(timeout=90)
        assert process.returncode == 130
    assert "INTERRUPTED" in printed
    found = json.loads(out.read_bytes())
    assert found["is_interrupted"]
    assert found["total"]["outcomes"].keys() == {"completed"}
