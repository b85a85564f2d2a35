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
    """Of all its models and ranks."""

    engine: Engine
    num_running: int = 0
    num_waiting: int = 0
    kv_usage: float = 0.0  # of the fullest rank
    kv_tokens: float = 0.0  # that its caches have room for; 0: it does not tell

    @property
    def num_requests(self) -> int:
        return self.num_running + self.num_waiting


class _Names(msgspec.Struct, frozen=True):
    running: bytes
    waiting: bytes
    kv_usage: bytes


_NAMES = {
    Engine.VLLM: _Names(
        b"vllm:num_requests_running", b"vllm:num_requests_waiting", b"vllm:kv_cache_usage_perc"
    ),
    Engine.SGLANG: _Names(
        b"sglang:num_running_reqs", b"sglang:num_queue_reqs", b"sglang:token_usage"
    ),
}
_SAMPLE = re.compile(
    rb"^([a-z_:]+)(?:\{[^\n]*\})? ([0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)\b", re.MULTILINE
)
_VLLM_CACHE = re.compile(rb"^vllm:cache_config_info\{([^\n]*)\}", re.MULTILINE)
_VLLM_BLOCKS = re.compile(rb'\bnum_gpu_blocks="(\d+)"')
_VLLM_BLOCK_SIZE = re.compile(rb'\bblock_size="(\d+)"')
_SGLANG_KV_TOKENS = b"sglang:max_total_num_tokens"


def foreign_load(exposition: bytes) -> ForeignLoad:
    """Of Prometheus' text format; samples that are no plain numbers are not counted."""
    samples: dict[bytes, list[float]] = {}
    for found in _SAMPLE.finditer(exposition):
        samples.setdefault(found[1], []).append(float(found[2]))
    for engine, names in _NAMES.items():
        if names.running in samples or names.waiting in samples:
            kv_tokens = sum(samples.get(_SGLANG_KV_TOKENS, ()))
            return ForeignLoad(
                engine,
                round(sum(samples.get(names.running, ()))),
                round(sum(samples.get(names.waiting, ()))),
                min(1.0, max(samples.get(names.kv_usage, (0.0,)))),
                kv_tokens if engine is Engine.SGLANG else _vllm_kv_tokens(exposition),
            )
    return ForeignLoad(Engine.OTHER)


def _vllm_kv_tokens(exposition: bytes) -> float:
    num_tokens = 0
    for found in _VLLM_CACHE.finditer(exposition):
        blocks, size = _VLLM_BLOCKS.search(found[1]), _VLLM_BLOCK_SIZE.search(found[1])
        if blocks is not None and size is not None:
            num_tokens += int(blocks[1]) * int(size[1])
    return num_tokens
