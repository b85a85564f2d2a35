"""``pandal plan`` as a user runs it."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from autoscaler.pool import PROMPT_TOKEN_WORK
from pandal.errors import BadOption
from pandal.planner import values
from pandal.planner.accelerator import find_accelerator
from pandal.planner.model_shape import find_model
from pandal.planner.values import Values
from tests.pandal.command_line import pandal

FLEET = (
    *("--model", "Llama-3-70B", "--gpu", "h100", "--precision", "fp8"),
    *("--prompt-tokens", "3000", "--output-tokens", "300", "--requests-per-s", "50"),
    *("--requests-per-day", "1.44e6", "--usd-per-gpu-hour", "3", "--api-usd", "3/15"),
)
QUANTILES = {"num": 90, "p50": 0, "p90": 0, "p95": 0, "p99": 0, "max": 0}


def report(tpot_s: float = 0.042) -> dict[str, Any]:
    """As much of a load generator's report as the planner reads, and a member it does not know."""
    answer_s = 48 / 3.8
    return {
        "type": "bench.report.v1",
        "model": "m",
        "total": {
            "latency": {
                "ttft_s": {**QUANTILES, "mean": 0.4},
                "tpot_s": {**QUANTILES, "mean": tpot_s},
                "e2e_s": {**QUANTILES, "mean": answer_s},
            },
            "throughput": {"requests_per_s": 3.8, "output_tokens_per_s": 1140},
            "tokens": {"prompt_tokens": 90 * 3000, "completion_tokens": 90 * 300},
        },
    }


def test_the_plan_is_explained_line_by_line() -> None:
    result = pandal("plan", *FLEET, "--explain")
    assert result.returncode == 0, result.stderr
    shown = result.stdout
    assert "  KV bytes per token " in shown
    assert "320 KiB" in shown
    assert "2 (K and V) x layers x KV heads x head size x bytes" in shown
    assert "= 2 * 80 * 8 * 128 * 2" in shown
    assert "$19,440" in shown


def test_a_bench_report_replaces_the_guesses(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text(json.dumps(report()))
    result = pandal("plan", *FLEET, "--from-bench", str(path), "--json")
    assert result.returncode == 0, result.stderr
    plan = json.loads(result.stdout)
    figures = {figure["name"]: figure["value"] for figure in plan["figures"]}
    assert plan["type"] == "plan.v1"
    assert (plan["num_replicas"], plan["gpus_per_replica"]) == (18, 2)
    assert figures["num_sequences"] == pytest.approx(48)
    assert figures["usd_per_day"] == 2592
    assert 0 < figures["tpot_s_measured_over_theory"] < 2


def test_the_best_run_of_a_search_is_taken_with_its_tokens(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text(json.dumps({"type": "bench.goodput.v1", "target_ratio": 0.9, "best": report()}))
    options = ("--model", "Llama-3-70B", "--gpu", "H100", "--precision", "fp8", "--json")
    plan = json.loads(pandal("plan", *options, "--from-bench", str(path)).stdout)
    figures = {figure["name"]: figure["value"] for figure in plan["figures"]}
    assert figures["requests_per_s"] == pytest.approx(3.8)
    assert figures["kv_bytes_per_request"] == 3300 * 327_680


def test_values_for_the_chart_read_back_as_they_are_documented(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text(json.dumps(report()))
    result = pandal("plan", *FLEET, "--from-bench", str(path), "--values")
    assert result.stdout.startswith("# pandal plan: Llama-3-70B (fp8) on H100\npools:\n  - name: ")
    read = msgspec.convert(yaml.safe_load(result.stdout), Values)
    (pool,) = read.pools
    assert (pool.name, pool.model) == ("llama-3-70b", "Llama-3-70B")
    assert (pool.precision, pool.kv_precision) == ("fp8", "bf16")
    assert (pool.replicas, pool.gpu.type, pool.gpu.count) == (18, "H100", 2)
    assert pool.capacity.tokens_per_s == pytest.approx(3.8 * (300 + 0.05 * 3000))
    assert (pool.capacity.cold_start_s, pool.capacity.cost_usd_per_h) == (35.3, 6.0)


def test_capacity_is_in_the_autoscalers_unit() -> None:
    assert values.PROMPT_TOKEN_WORK == PROMPT_TOKEN_WORK


def test_values_without_a_demand_or_a_price_are_of_one_replica() -> None:
    result = pandal("plan", "--model", "Llama-3.1-8B", "--gpu", "L4", "--values")
    (pool,) = msgspec.convert(yaml.safe_load(result.stdout), Values).pools
    assert (pool.name, pool.replicas) == ("llama-3-1-8b", 1)
    assert pool.capacity.cost_usd_per_h is None
    assert "costUsdPerH" not in result.stdout


def test_the_choice_of_max_num_seqs_is_the_plans() -> None:
    options = ("--max-tpot-ms", "60", "--tp", "4")
    shown = yaml.safe_load(pandal("plan", *FLEET, *options, "--values").stdout)
    plan = json.loads(pandal("plan", *FLEET, *options, "--json").stdout)
    assert shown["pools"][0]["maxNumSeqs"] == plan["max_sequences"]
    assert shown["pools"][0]["replicas"] == plan["num_replicas"]


def test_a_model_of_ones_own_on_a_gpu_of_ones_own(tmp_path: Path) -> None:
    config = {
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 128,
        "vocab_size": 100,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "rope_theta": 10000.0,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    gpu = tmp_path / "toy.toml"
    gpu.write_text(
        "memory_gb = 1\nbandwidth_gb_per_s = 10\nbf16_tflop_per_s = 0.1\nsource = 'measured'\n"
    )
    result = pandal("plan", "--model", str(tmp_path), "--gpu", str(gpu), "--json")
    assert result.returncode == 0, result.stderr
    figures = {f["name"]: f["value"] for f in json.loads(result.stdout)["figures"]}
    layers = 2 * (4 * 64 * 64 + 3 * 64 * 128 + 2 * 64)
    assert figures["num_parameters"] == layers + 2 * 100 * 64 + 64
    assert figures["kv_bytes_per_token"] == 2 * 2 * 64 * 2


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--gpu", "H99"), "--gpu: 'H99' is neither a .toml file nor one of H100"),
        (("--model", "no-model"), "--model: 'no-model' is neither a config.json"),
        (("--from-bench", "none.json"), "none.json: No such file"),
        (("--api-usd", "3"), "--api-usd: expected IN/OUT"),
        (("--speculate", "4/1.5/0"), "--speculate: expected"),
        (("--json", "--values"), "--json, --values"),
    ],
    ids=str,
)
def test_what_cannot_be_is_named(options: tuple[str, ...], complaint: str) -> None:
    result = pandal("plan", *FLEET, *options)
    assert result.returncode == 2
    assert complaint in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b'{"model_type": "gpt2"}', "missing required field"),
        (b"{", "config.json"),
        (
            b'{"model_type": "deepseek_v3", "hidden_size": 1, "intermediate_size": 1,'
            b' "num_hidden_layers": 1, "num_attention_heads": 1, "vocab_size": 1}',
            "expected a model_type of llama",
        ),
    ],
    ids=["no size", "no JSON", "unknown family"],
)
def test_a_config_it_cannot_count_is_refused(
    tmp_path: Path, content: bytes, complaint: str
) -> None:
    (tmp_path / "config.json").write_bytes(content)
    result = pandal("plan", *FLEET, "--model", str(tmp_path))
    assert result.returncode == 2
    assert complaint in result.stderr


def test_the_planner_needs_no_torch() -> None:
    prepare = (
        "import atexit; atexit.register("
        "lambda: print(sorted({'torch', 'fastapi', 'sqlalchemy'} & set(sys.modules))))"
    )
    result = pandal("plan", *FLEET, "--json", prepare=prepare)
    assert result.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    "options",
    [("--requests-per-s", "inf"), ("--requests-per-s", "5", "--headroom", "1e308")],
)
def test_numbers_beyond_all_use_are_refused(options: tuple[str, ...]) -> None:
    result = pandal("plan", "--model", "Llama-3.1-8B", "--gpu", "H100", *options)
    assert result.returncode == 2
    assert f"'{options[-2]}'" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    "wrong",
    [
        {"num_attention_heads": 0},
        {"num_attention_heads": 5000},
        {"num_hidden_layers": -3},
        {"num_experts_per_tok": 9},
        {"vocab_size": 10**30},
    ],
    ids=str,
)
def test_a_model_that_cannot_be_is_refused(tmp_path: Path, wrong: dict[str, int]) -> None:
    config = {
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "vocab_size": 128256,
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config | wrong))
    with pytest.raises(BadOption, match=r"--model: .*config\.json: "):
        find_model(str(path))


@pytest.mark.parametrize(
    "text",
    [
        b"\xff",
        b'memory_gb = nan\nbandwidth_gb_per_s = 1\nbf16_tflop_per_s = 1\nsource = ""',
        b'memory_gb = 80\nbandwidth_gb_per_s = 0\nbf16_tflop_per_s = 1\nsource = ""',
        b'memory_gb = inf\nbandwidth_gb_per_s = 1\nbf16_tflop_per_s = 1\nsource = ""',
    ],
)
def test_a_gpu_that_cannot_be_is_refused(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "gpu.toml"
    path.write_bytes(text)
    with pytest.raises(BadOption, match=r"--gpu: .*gpu\.toml: "):
        find_accelerator(str(path))
