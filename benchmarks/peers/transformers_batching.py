"""transformers' continuous batching in float32 over a GGUF file, as a server.

python -m benchmarks.peers.transformers_batching MODEL.gguf PORT
"""

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import ContinuousBatchingConfig, GenerationConfig

from benchmarks import transformers_peer
from benchmarks.peers.completions import CompletionsServer, Progress

NUM_BLOCKS = 1024
PAGE_TOKENS = 32
_NO_TOKEN = -1  # ends no text


class TransformersEngine:
    """A SteppingEngine."""

    def __init__(self, manager: Any) -> None:  # a class that transformers does not export
        self._manager = manager
        self._num_tokens: dict[str, int] = {}

    def add(self, number: int, prompt: Sequence[int], max_tokens: int) -> None:
        name = str(number)
        self._num_tokens[name] = 0
        self._manager.add_request(
            list(prompt), request_id=name, max_new_tokens=max_tokens, streaming=True
        )

    def step(self) -> Iterable[Progress]:
        """One result, which is less than a step: a token of one request."""
        result = self._manager.get_result(timeout=60)
        if result is None or result.error:
            raise RuntimeError(f"transformers gave no tokens: {result and result.error}")
        name = result.request_id
        num_new = len(result.generated_tokens) - self._num_tokens[name]
        self._num_tokens[name] += num_new
        is_finished = result.is_finished()
        if is_finished:
            del self._num_tokens[name]
        yield Progress(int(name), num_new, is_finished)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("port", type=int)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    model = transformers_peer.load(arguments.model)
    generation = GenerationConfig(
        do_sample=False, eos_token_id=_NO_TOKEN, pad_token_id=0, max_new_tokens=128
    )
    batching = ContinuousBatchingConfig(
        page_size=PAGE_TOKENS,
        num_blocks=NUM_BLOCKS,
        max_batch_tokens=512,
        allow_block_sharing=False,
        use_cuda_graph=False,
        use_async_batching=False,
    )
    with model.continuous_batching_context_manager(
        generation_config=generation, continuous_batching_config=batching, warmup=False
    ) as manager:
        CompletionsServer(TransformersEngine(manager), "transformers").serve(arguments.port)


if __name__ == "__main__":
    main()
