"""``pandal plan``: options in, a plan out."""

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from pandal.errors import BadOption
from pandal.planner.accelerator import find_accelerator
from pandal.planner.bench_point import read_point
from pandal.planner.cost import ApiPrice
from pandal.planner.deployment import Plan, make_plan
from pandal.planner.model_shape import find_model
from pandal.planner.precision import Precision
from pandal.planner.question import Draft, Load, MeasuredPoint, Prices, Question, Serving
from pandal.planner.rendering import plan_json, plan_text
from pandal.planner.values import chart_values
from pandal.screen import say

DEFAULT_PROMPT_TOKENS = 1000.0
DEFAULT_OUTPUT_TOKENS = 300.0

_REPLICA, _LOAD, _ENGINE, _MONEY = "A replica", "The load", "What an engine reaches", "Prices"
_ANSWER = "The plan"
_MOST = 10**12  # of anything: beyond, floats overflow somewhere on the way


def _option(
    panel: str,
    help_: str,
    *names: str,
    least: float | None = None,
    most: float | None = None,
    default: str | None = None,
    metavar: str | None = None,
) -> Any:
    """``default``: words for it, where the value is no help.  Any: it is metadata for typer."""
    if least is not None and most is None:
        most = _MOST
    return typer.Option(
        *names,
        help=help_,
        min=least,
        max=most,
        metavar=metavar,
        rich_help_panel=panel,
        show_default=True if default is None else default,
    )


Model = Annotated[str, _option(_REPLICA, "A known name, a config.json, or its folder.")]
Gpu = Annotated[str, _option(_REPLICA, "A known type, or a .toml file of one.")]
WeightPrecision = Annotated[Precision, _option(_REPLICA, "Of the weights.")]
KvPrecision = Annotated[Precision, _option(_REPLICA, "Of the KV cache.")]
Tp = Annotated[
    int | None, _option(_REPLICA, "GPUs per replica.", least=1, default="the fewest that do")
]
MaxBatch = Annotated[int, _option(_REPLICA, "Sequences it may run together.", least=1)]
UsableMemory = Annotated[float, _option(_REPLICA, "Share of a GPU's memory.", least=0.01, most=1)]
PromptTokens = Annotated[
    float | None, _option(_LOAD, "Mean per request.", least=1, default="1000, or as measured")
]
OutputTokens = Annotated[
    float | None, _option(_LOAD, "Mean per request.", least=1, default="300, or as measured")
]
RequestsPerS = Annotated[float | None, _option(_LOAD, "Demand at its busiest.", least=0.001)]
RequestsPerDay = Annotated[
    float | None, _option(_LOAD, "For costs.", least=1, default="the busiest, all day")
]
Headroom = Annotated[float, _option(_LOAD, "Replicas over the demand; 0.3 is 30 %.", least=0)]
MaxTpot = Annotated[float | None, _option(_LOAD, "Time per output token to keep.", least=0.001)]
ComputeEfficiency = Annotated[
    float, _option(_ENGINE, "Of the peak FLOP/s, in prefill.", least=0.01, most=1)
]
BandwidthEfficiency = Annotated[
    float, _option(_ENGINE, "Of the peak bandwidth, in decode.", least=0.01, most=1)
]
LoadRate = Annotated[float, _option(_ENGINE, "At which weights are loaded.", least=0.001)]
Speculate = Annotated[
    str | None,
    _option(_ENGINE, "Of drafted tokens, such as 4/0.8/0.05.", metavar="K/ACCEPTANCE/COST"),
]
FromBench = Annotated[
    Path | None, _option(_ENGINE, "Report of 'pandal bench' of one replica, instead of guesses.")
]
GpuPrice = Annotated[float | None, _option(_MONEY, "Of a GPU.", least=0)]
Api = Annotated[
    str | None, _option(_MONEY, "An API's, per million tokens: 3/15.", metavar="IN/OUT")
]
Explain = Annotated[bool, _option(_ANSWER, "With each formula and its numbers.", "--explain")]
AsJson = Annotated[bool, _option(_ANSWER, "As JSON, for programs.", "--json")]
AsValues = Annotated[bool, _option(_ANSWER, "As YAML, for the chart.", "--values")]


def plan(
    model: Model,
    gpu: Gpu,
    precision: WeightPrecision = Precision.BF16,
    kv_precision: KvPrecision = Precision.BF16,
    tp: Tp = None,
    max_batch: MaxBatch = 256,
    usable_memory: UsableMemory = 0.9,
    prompt_tokens: PromptTokens = None,
    output_tokens: OutputTokens = None,
    requests_per_s: RequestsPerS = None,
    requests_per_day: RequestsPerDay = None,
    headroom: Headroom = 0.3,
    max_tpot_ms: MaxTpot = None,
    compute_efficiency: ComputeEfficiency = 0.5,
    bandwidth_efficiency: BandwidthEfficiency = 0.7,
    load_gb_per_s: LoadRate = 2.0,
    speculate: Speculate = None,
    from_bench: FromBench = None,
    usd_per_gpu_hour: GpuPrice = None,
    api_usd: Api = None,
    explain: Explain = False,
    as_json: AsJson = False,
    as_values: AsValues = False,
) -> None:
    """How many GPUs, at what cost, how fast: by arithmetic, before anything runs."""
    measured = None if from_bench is None else read_point(from_bench)
    serving = Serving(
        shape=find_model(model),
        gpu=find_accelerator(gpu),
        weight_precision=precision,
        kv_precision=kv_precision,
        num_gpus=tp,
        max_batch=max_batch,
        usable_ratio=usable_memory,
        compute_ratio=compute_efficiency,
        bandwidth_ratio=bandwidth_efficiency,
        load_bytes_per_s=load_gb_per_s * 1e9,
    )
    load = Load(
        *_tokens(prompt_tokens, output_tokens, measured),
        requests_per_s=requests_per_s,
        requests_per_day=requests_per_day,
        headroom_ratio=headroom,
        max_tpot_s=None if max_tpot_ms is None else max_tpot_ms / 1000,
    )
    prices = Prices(usd_per_gpu_hour, _api_price(api_usd))
    made = make_plan(Question(serving, load, prices, _draft(speculate), measured))
    say(_shown(made, explain=explain, as_json=as_json, as_values=as_values))


def _shown(made: Plan, *, explain: bool, as_json: bool, as_values: bool) -> str:
    if as_json and as_values:
        raise BadOption("--json, --values: expected one of them")
    if as_json:
        return plan_json(made)
    return chart_values(made) if as_values else plan_text(made, is_explained=explain)


def _tokens(
    prompt_tokens: float | None, output_tokens: float | None, measured: MeasuredPoint | None
) -> tuple[float, float]:
    """As given, else as measured, else the defaults."""
    prompt, output = DEFAULT_PROMPT_TOKENS, DEFAULT_OUTPUT_TOKENS
    if measured is not None:
        prompt, output = measured.prompt_tokens, measured.output_tokens
    return (
        prompt if prompt_tokens is None else prompt_tokens,
        output if output_tokens is None else output_tokens,
    )


def _api_price(text: str | None) -> ApiPrice | None:
    return None if text is None else ApiPrice(*_numbers(text, "--api-usd", "IN/OUT", 2))


def _draft(text: str | None) -> Draft | None:
    if text is None:
        return None
    num_tokens, acceptance_ratio, cost_ratio = _numbers(text, "--speculate", "K/ACCEPTANCE/COST", 3)
    if num_tokens < 1 or num_tokens % 1 or acceptance_ratio > 1:
        raise BadOption(f"--speculate: expected a whole K and an acceptance up to 1, got {text!r}")
    return Draft(acceptance_ratio, int(num_tokens), cost_ratio)


def _numbers(text: str, option: str, form: str, count: int) -> list[float]:
    try:
        numbers = [float(part) for part in text.split("/")]
    except ValueError:
        numbers = []
    if len(numbers) != count or not all(0 <= number < math.inf for number in numbers):
        raise BadOption(f"{option}: expected {form} in numbers, got {text!r}")
    return numbers
