"""``pandal plan``: options in, a plan out."""

import math
from pathlib import Path
from typing import Annotated

import typer

from pandal.errors import BadOption
from pandal.planner.accelerator import find_accelerator
from pandal.planner.bench_point import read_point
from pandal.planner.cost import ApiPrice
from pandal.planner.deployment import Plan, make_plan
from pandal.planner.model_shape import find_model
from pandal.planner.precision import Precision
from pandal.planner.question import Draft, Load, MeasuredPoint, Prices, Question, Serving
from pandal.planner.rendering import chart_values, plan_json, plan_text
from pandal.screen import say

DEFAULT_PROMPT_TOKENS = 1000.0
DEFAULT_OUTPUT_TOKENS = 300.0

Model = Annotated[str, typer.Option(help="A known name, a config.json, or its folder.")]
Gpu = Annotated[str, typer.Option(help="A known type, or a .toml file of one.")]
WeightPrecision = Annotated[Precision, typer.Option(help="Of the weights.")]
KvPrecision = Annotated[Precision, typer.Option(help="Of the KV cache.")]
Tp = Annotated[
    int | None, typer.Option(min=1, help="GPUs per replica.", show_default="the fewest that do")
]
PromptTokens = Annotated[
    float | None, typer.Option(min=1, help="Mean per request.", show_default="1000, or as measured")
]
OutputTokens = Annotated[
    float | None, typer.Option(min=1, help="Mean per request.", show_default="300, or as measured")
]
RequestsPerS = Annotated[float | None, typer.Option(min=0.001, help="Demand at its busiest.")]
RequestsPerDay = Annotated[
    float | None,
    typer.Option(min=1, help="For the costs of a day.", show_default="the busiest, all day"),
]
Headroom = Annotated[float, typer.Option(min=0, help="Replicas over the demand; 0.3 is 30 %.")]
MaxTpot = Annotated[float | None, typer.Option(min=0.001, help="Time per output token to keep.")]
MaxBatch = Annotated[int, typer.Option(min=1, help="Sequences an engine may run together.")]
UsableMemory = Annotated[float, typer.Option(min=0.01, max=1, help="Share of a GPU's memory.")]
ComputeEfficiency = Annotated[
    float, typer.Option(min=0.01, max=1, help="Of the peak FLOP/s, reached in prefill.")
]
BandwidthEfficiency = Annotated[
    float, typer.Option(min=0.01, max=1, help="Of the peak bandwidth, reached in decode.")
]
LoadRate = Annotated[float, typer.Option(min=0.001, help="At which weights are loaded.")]
GpuPrice = Annotated[float | None, typer.Option(min=0, help="Price of a GPU.")]
Api = Annotated[
    str | None, typer.Option(metavar="IN/OUT", help="An API's $ per million tokens: 3/15.")
]
Speculate = Annotated[
    str | None,
    typer.Option(metavar="K/ACCEPTANCE/COST", help="Tokens drafted, such as 4/0.8/0.05."),
]
FromBench = Annotated[
    Path | None,
    typer.Option(help="A report of 'pandal bench' of one replica, in place of guesses."),
]
Explain = Annotated[bool, typer.Option("--explain", help="Show each formula and its numbers.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
AsValues = Annotated[bool, typer.Option("--values", help="Print YAML, for the chart.")]


def plan(
    model: Model,
    gpu: Gpu,
    precision: WeightPrecision = Precision.BF16,
    kv_precision: KvPrecision = Precision.BF16,
    tp: Tp = None,
    prompt_tokens: PromptTokens = None,
    output_tokens: OutputTokens = None,
    requests_per_s: RequestsPerS = None,
    requests_per_day: RequestsPerDay = None,
    headroom: Headroom = 0.3,
    max_tpot_ms: MaxTpot = None,
    max_batch: MaxBatch = 256,
    usable_memory: UsableMemory = 0.9,
    compute_efficiency: ComputeEfficiency = 0.5,
    bandwidth_efficiency: BandwidthEfficiency = 0.7,
    load_gb_per_s: LoadRate = 2.0,
    usd_per_gpu_hour: GpuPrice = None,
    api_usd: Api = None,
    speculate: Speculate = None,
    from_bench: FromBench = None,
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
