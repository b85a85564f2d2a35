"""OpenVINO GenAI's continuous batching over a GGUF file, as a server.

    pip install openvino-genai
    python -m benchmarks.peers.openvino_genai MODEL.gguf PORT [--exact]

--exact: float32 activations and float32 keys and values.  Without it OpenVINO chooses, and on most
CPUs quantizes activations.
"""

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import openvino_genai

from benchmarks.peers.completions import CompletionsServer, Progress

_EXACT = {
    "INFERENCE_PRECISION_HINT": "f32",
    "KV_CACHE_PRECISION": "f32",
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
}


class OpenVinoEngine:
    """A SteppingEngine."""

    def __init__(self, model: Path, *, properties: dict[str, object], num_threads: int) -> None:
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = 1  # GB
        scheduler.max_num_seqs = 32
        scheduler.max_num_batched_tokens = 512
        scheduler.enable_prefix_caching = False
        chosen = {"INFERENCE_NUM_THREADS": num_threads, **properties}
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(
            str(model), scheduler, "CPU", chosen
        )
        self._handles: dict[int, Any] = {}  # the library has no types
        self._num_left: dict[int, int] = {}

    def add(self, number: int, prompt: Sequence[int], max_tokens: int) -> None:
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = max_tokens
        config.ignore_eos = True
        config.do_sample = False
        ids = openvino.Tensor(np.array([prompt], np.int64))
        self._handles[number] = self._pipeline.add_request(number, ids, config)
        self._num_left[number] = max_tokens

    def step(self) -> Iterable[Progress]:
        self._pipeline.step()
        for number, handle in list(self._handles.items()):
            num_new = 0
            while handle.can_read():
                num_new += sum(len(part.generated_ids) for part in handle.read().values())
            if num_new == 0:
                continue
            self._num_left[number] -= num_new
            is_finished = self._num_left[number] <= 0
            if is_finished:
                del self._handles[number], self._num_left[number]
            yield Progress(number, num_new, is_finished)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("port", type=int)
    parser.add_argument("--exact", action="store_true")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    engine = OpenVinoEngine(
        arguments.model,
        properties=_EXACT if arguments.exact else {},
        num_threads=arguments.threads,
    )
    CompletionsServer(engine, "openvino").serve(arguments.port)


if __name__ == "__main__":
    main()
