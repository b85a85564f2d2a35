"""A question to the planner, and changes to it."""

from dataclasses import replace
from typing import Any

from pandal.planner.accelerator import find_accelerator
from pandal.planner.cost import ApiPrice
from pandal.planner.model_shape import find_model
from pandal.planner.precision import Precision
from pandal.planner.question import Draft, Load, MeasuredPoint, Prices, Question, Serving

SERVING = Serving(
    shape=find_model("Llama-3-70B"),
    gpu=find_accelerator("H100"),
    weight_precision=Precision.FP8,
    kv_precision=Precision.BF16,
    num_gpus=None,
    max_batch=256,
    usable_ratio=0.9,
    compute_ratio=0.5,
    bandwidth_ratio=0.7,
    load_bytes_per_s=2e9,
)
LOAD = Load(
    prompt_tokens=3000,
    output_tokens=300,
    requests_per_s=50,
    requests_per_day=1.44e6,
    headroom_ratio=0.3,
    max_tpot_s=None,
)
MEASURED = MeasuredPoint(
    num_sequences=48,
    prompt_tokens=3000,
    output_tokens=300,
    ttft_s=0.4,
    tpot_s=0.042,
    output_tokens_per_s=1140,
)


def question(measured: MeasuredPoint | None = None, **changes: Any) -> Question:
    """``changes`` to the serving or the load, by the name of the member."""
    of_serving = {k: v for k, v in changes.items() if hasattr(SERVING, k)}
    of_load = {k: v for k, v in changes.items() if hasattr(LOAD, k)}
    assert len(of_serving) + len(of_load) == len(changes)
    return Question(
        serving=replace(SERVING, **of_serving),
        load=replace(LOAD, **of_load),
        prices=Prices(usd_per_gpu_hour=3, api=ApiPrice(3, 15)),
        draft=Draft(acceptance_ratio=0.8, num_tokens=4, cost_ratio=0.05),
        measured=measured,
    )
