"""The compiled step around a model: when it can be used, and how it comes to be.

Imports Numba, and so is imported only when the compiled step may be wanted.
"""

import logging
import pickle
import platform
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from kernels.decoder_step.model import DecoderWeights, KvCache
from kernels.decoder_step.op import DecoderStep, fitting_level
from kernels.paged_attention.formats import KvFormat
from kernels.sampling.op import RowSampler
from kernels.threads.team import ThreadTeam
from kernels.vector_ir.compile_cache import compiling_into
from replica.engine.compiled_runner import CompiledRunner
from replica.engine.cores import num_usable_cores
from replica.engine.free_memory import available_bytes
from replica.engine.kv_blocks import PLAIN, KvBlocks, KvOptions
from replica.engine.memory_plan import MemoryPlan, plan_memory
from replica.engine.messages import EngineConfig, KvCacheDtype, Precision
from replica.model.config import LlamaConfig
from replica.model.damage import blaming
from replica.model.loader import OpenedModel
from replica.model.packed_weights import PackedModel, shape_of

_MACHINES: Final = ("x86_64", "aarch64")
_REPORT_INTERVAL_S: Final = 0.5
_COMPILATION_S: Final = 10.0  # on one core of 2024; only progress reports depend on it

logger = logging.getLogger(__name__)


def obstacle(model: LlamaConfig, config: EngineConfig) -> str | None:
    """Why the compiled step cannot run this model on this machine; None: it can."""
    if sys.platform != "linux" or platform.machine() not in _MACHINES:
        return f"kernels are not compiled for {sys.platform} on {platform.machine()}"
    if model.has_qkv_bias or model.has_qk_norm:
        return "biases on q, k and v, or norms on their heads, are not compiled"
    if model.experts is not None:
        return "experts are not compiled"
    if config.adapters:
        return "adapters are not compiled"
    if config.precision is Precision.FLOAT8:
        return "products of float8 need a GPU"
    if config.kv_cache_dtype is KvCacheDtype.FLOAT8:
        return f"keys and values as {config.kv_cache_dtype} need a GPU"
    try:
        fitting_level(shape_of(model), KvFormat(config.kv_cache_dtype), config.block_size)
    except ValueError as exc:
        return str(exc)
    return None


class CompiledBackend:
    """A Backend."""

    def __init__(
        self, opened: OpenedModel, config: EngineConfig, eos_token_ids: Collection[int]
    ) -> None:
        """There is no ``obstacle``.

        Raises ModelError for files that are not what they should be, or not what the precision
        needs.
        """
        with blaming(opened.path):
            self._model = PackedModel(opened.source, opened.config, config.precision)
        self._path = opened.path
        self._model_config = opened.config
        self._shape = shape_of(opened.config)
        self._config = config
        self._kv_format = KvFormat(config.kv_cache_dtype)
        self._eos_token_ids = eos_token_ids
        self._num_threads = num_usable_cores() if config.num_threads is None else config.num_threads

    @property
    def description(self) -> str:
        level = fitting_level(self._shape, self._kv_format, self._config.block_size)
        return (
            f"compiled kernels, {self._num_threads} threads: {level}, "
            f"keys and values as {self._kv_format}, "
            f"activations as {self._model.activation_format}, "
            f"weights as {self._model.layer_format}"
        )

    @property
    def kv_dtype(self) -> str:
        return self._config.kv_name

    @property
    def weights_bytes(self) -> int:
        return self._model.size_bytes

    def plan(self, _report: Callable[[float, str], None]) -> MemoryPlan:
        """Before the weights are read."""
        return plan_memory(
            self._config,
            self._model_config,
            weights_bytes=self.weights_bytes,
            available_bytes=available_bytes(self._config.memory_bytes),
        )

    def load(
        self,
        num_blocks: int,
        report: Callable[[float, str], None],
        options: KvOptions = PLAIN,
    ) -> CompiledRunner:
        with blaming(self._path):
            weights = self._model.load(lambda ratio: report(ratio / 2, "loading weights"))
            weights.check(self._shape)
        cache = KvCache(self._shape, self._kv_format, num_blocks, self._config.block_size)
        team = ThreadTeam(self._num_threads)
        detail = "compiling kernels" + (", once" if self._config.compile_cache_dir else "")
        with _rising(lambda ratio: report(0.5 + 0.49 * ratio, detail)):  # never told as 100 %
            step, sampler = self._compile(weights, cache, team)
        blocks = KvBlocks(cache.block_bytes(), options)
        return CompiledRunner(step, sampler, blocks, self._eos_token_ids)

    def _compile(
        self, weights: DecoderWeights, cache: KvCache, team: ThreadTeam
    ) -> tuple[DecoderStep, RowSampler]:
        config = self._config

        def compile_into(directory: Path | None) -> tuple[DecoderStep, RowSampler]:
            with compiling_into(directory):
                step = DecoderStep(
                    self._shape,
                    weights,
                    cache,
                    team,
                    max_rows=config.max_num_batched_tokens,
                    max_sampled_rows=config.max_num_seqs,
                    activation_format=self._model.activation_format,
                )
                return step, RowSampler(self._shape.vocab_size, team)

        directory = Path(config.compile_cache_dir) if config.compile_cache_dir else None
        try:
            return compile_into(directory)
        except (OSError, EOFError, pickle.UnpicklingError) as exc:
            extra = {"path": str(directory), "error": str(exc)}
            logger.warning(
                "compiled kernels cannot be kept: the next start compiles too", extra=extra
            )
        return compile_into(None)


@contextmanager
def _rising(report: Callable[[float], None]) -> Iterator[None]:
    """Reports, while something lasts that cannot say how far it is, the part likely done.

    It halves what is left every few seconds, so it always moves and never arrives.
    """
    is_over = threading.Event()

    def run() -> None:
        started_at_s = time.monotonic()
        while not is_over.wait(_REPORT_INTERVAL_S):
            report(1.0 - 0.5 ** (2 * (time.monotonic() - started_at_s) / _COMPILATION_S))

    report(0.0)
    thread = threading.Thread(target=run, name="progress")
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
