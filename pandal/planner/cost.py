"""What the GPUs cost, and what an API would.  Planning figures: no invoice is made of them."""

from dataclasses import dataclass

from pandal.planner.figure import Figure, Unit

SECONDS_PER_DAY = 86_400


@dataclass(frozen=True, slots=True)
class ApiPrice:
    usd_per_million_input_tokens: float
    usd_per_million_output_tokens: float


def gpu_hours_per_million_tokens(tokens_per_s_per_gpu: float) -> Figure:
    return Figure(
        "gpu_hours_per_million_output_tokens",
        1e6 / tokens_per_s_per_gpu / 3600,
        Unit.GPU_HOURS,
        "1,000,000 / output tokens per second of a GPU / 3600",
        f"1e6 / {tokens_per_s_per_gpu:.6g} / 3600",
    )


def usd_per_million_tokens(gpu_hours: float, usd_per_gpu_hour: float) -> Figure:
    """With every replica busy all the time: the least it can cost."""
    return Figure(
        "usd_per_million_output_tokens",
        gpu_hours * usd_per_gpu_hour,
        Unit.USD,
        "GPU-hours per million x price of a GPU-hour",
        f"{gpu_hours:.6g} * {usd_per_gpu_hour:g}",
    )


def usd_per_day(num_gpus: float, usd_per_gpu_hour: float) -> Figure:
    return Figure(
        "usd_per_day",
        num_gpus * usd_per_gpu_hour * 24,
        Unit.USD,
        "GPUs x price of a GPU-hour x 24",
        f"{num_gpus:g} * {usd_per_gpu_hour:g} * 24",
    )


def requests_per_day(requests_per_s: float, *, given: float | None = None) -> Figure:
    """``given``: a day has quiet hours, the rate is its busiest."""
    name = "requests_per_day"
    if given is not None:
        return Figure(name, given, Unit.COUNT, "as given", f"{given:g}")
    return Figure(
        name,
        requests_per_s * SECONDS_PER_DAY,
        Unit.COUNT,
        "requests per second x 86,400",
        f"{requests_per_s:g} * {SECONDS_PER_DAY}",
    )


def usd_per_million_served(
    usd_per_day: float, requests_per_day: float, output_tokens: float
) -> Figure:
    """At the day's real load, headroom and quiet hours included."""
    return Figure(
        "usd_per_million_output_tokens_served",
        usd_per_day / (requests_per_day * output_tokens) * 1e6,
        Unit.USD,
        "dollars a day / (requests a day x output tokens) x 1,000,000",
        f"{usd_per_day:.6g} / ({requests_per_day:g} * {output_tokens:g}) * 1e6",
    )


def api_usd_per_day(
    price: ApiPrice, *, requests_per_day: float, prompt_tokens: float, output_tokens: float
) -> Figure:
    into, out = price.usd_per_million_input_tokens, price.usd_per_million_output_tokens
    return Figure(
        "api_usd_per_day",
        requests_per_day * (prompt_tokens * into + output_tokens * out) / 1e6,
        Unit.USD,
        "requests a day x (prompt tokens x input price + output tokens x output price)",
        f"{requests_per_day:g} * ({prompt_tokens:g} * {into:g} + {output_tokens:g} * {out:g})"
        " / 1e6",
    )
