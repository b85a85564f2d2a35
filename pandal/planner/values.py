"""The planner's choice as values of a chart: a list of pools, of which a plan makes one.

What the plan cannot know (where the model's files lie, secrets, bounds of scaling) is left to the
chart's own defaults.  Rates are in the autoscaler's unit of work, in which its first guess of a
replica's capacity must be.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from pandal.planner.deployment import Plan
from pandal.planner.precision import Precision

PROMPT_TOKEN_WORK: Final = 0.05  # of a generated token's, as the autoscaler weighs them
_LONGEST_NAME: Final = 40  # a Kubernetes name has 63, and the chart puts the release's before it


class Gpu(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    type: str
    count: int  # of one replica: its tensor-parallel degree


class Capacity(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True
):
    """What the autoscaler begins with, until it has learned better."""

    tokens_per_s: float  # work of a full replica: generated tokens, and prompts' by their cost
    cold_start_s: float  # the weights' loading alone: the least that it takes
    cost_usd_per_h: float | None = None  # of one replica; None: no price was named


class Pool(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    name: str
    model: str  # as the planner calls it
    precision: Precision
    kv_precision: Precision
    replicas: int
    max_num_seqs: int  # of one replica
    gpu: Gpu
    capacity: Capacity


class Values(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    pools: list[Pool]


def values_of(plan: Plan) -> Values:
    serving = plan.question.serving
    return Values(
        pools=[
            Pool(
                name=_label(serving.shape.name),
                model=serving.shape.name,
                precision=serving.weight_precision,
                kv_precision=serving.kv_precision,
                replicas=1 if plan.num_replicas is None else plan.num_replicas,
                max_num_seqs=plan.max_sequences,
                gpu=Gpu(type=serving.gpu.name, count=plan.gpus_per_replica),
                capacity=_capacity(plan),
            )
        ]
    )


def chart_values(plan: Plan) -> str:
    """YAML."""
    serving = plan.question.serving
    title = f"# pandal plan: {serving.shape.name} ({serving.weight_precision}) on "
    values = msgspec.to_builtins(values_of(plan))
    return "\n".join([f"{title}{serving.gpu.name}", *_yaml(values, "")])


def _capacity(plan: Plan) -> Capacity:
    load, price = plan.question.load, plan.question.prices.usd_per_gpu_hour
    work = load.output_tokens + PROMPT_TOKEN_WORK * load.prompt_tokens
    return Capacity(
        tokens_per_s=round(plan.figures["requests_per_s"] * work, 1),
        cold_start_s=round(plan.figures["weight_load_s"], 1),
        cost_usd_per_h=None if price is None else round(price * plan.gpus_per_replica, 4),
    )


def _label(name: str) -> str:
    """A name that Kubernetes takes."""
    parts = re.findall(r"[a-z0-9]+", name.casefold())
    return "-".join(parts)[:_LONGEST_NAME].strip("-") or "model"


def _yaml(value: Any, indent: str) -> Iterator[str]:  # Any: what msgspec makes of a struct
    """Block style; scalars as JSON writes them, which YAML reads; members without a value go."""
    for name, member in value.items():
        if isinstance(member, Mapping):
            yield f"{indent}{name}:"
            yield from _yaml(member, f"{indent}  ")
        elif isinstance(member, Sequence) and not isinstance(member, str):
            yield f"{indent}{name}:"
            for item in member:
                first, *others = _yaml(item, f"{indent}    ")
                yield f"{indent}  - {first.strip()}"
                yield from others
        elif member is not None:
            yield f"{indent}{name}: {msgspec.json.encode(member).decode()}"
