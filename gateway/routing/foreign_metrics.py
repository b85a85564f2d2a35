"""How busy a replica of another make is, judging by its metrics: by them it is told which make.

https://docs.vllm.ai/en/latest/usage/metrics/, https://docs.sglang.io/references/production_metrics.html
"""

import enum
import re

import msgspec


class Engine(enum.StrEnum):
    PANDAL = "pandal"
    VLLM = "vllm"
    SGLANG = "sglang"
    OTHER = "other"  # any OpenAI-compatible server: it tells nothing of its load


class ForeignLoad(msgspec.Struct, frozen=True):
    engine: Engine
    num_requests: int  # running and waiting, of all its models


_GAUGES = {
    Engine.VLLM: (b"vllm:num_requests_running", b"vllm:num_requests_waiting"),
    Engine.SGLANG: (b"sglang:num_running_reqs", b"sglang:num_queue_reqs"),
}
_SAMPLE = re.compile(
    rb"^([a-z_:]+)(?:\{[^\n]*\})? ([0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)\b", re.MULTILINE
)


def foreign_load(exposition: bytes) -> ForeignLoad:
    """Of Prometheus' text format; samples that are no plain numbers are not counted."""
    sums: dict[bytes, float] = {}
    for found in _SAMPLE.finditer(exposition):
        sums[found[1]] = sums.get(found[1], 0.0) + float(found[2])
    for engine, names in _GAUGES.items():
        if any(name in sums for name in names):
            return ForeignLoad(engine, round(sum(sums.get(name, 0.0) for name in names)))
    return ForeignLoad(Engine.OTHER, 0)
