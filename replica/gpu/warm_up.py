"""Steps that between them launch whatever kernels a step may, but for the decodes of graphs.

Triton compiles a kernel when it first meets its kind of arguments, which takes seconds: run before
anything is served, they leave no request to wait for it.  No device here.
"""

from array import array
from collections.abc import Iterator
from typing import Final

from replica.engine.batch import FlatBatch, SampledRow, SeenTokens, Segment
from replica.engine.block_manager import NULL_BLOCK
from replica.engine.messages import SamplingParams

_FEW: Final = 2  # tokens: no graph's, and still in the small tile of a decode's attention
_MANY: Final = 17  # tokens: in the large tile of a prefill's, whatever the model
_DRAWS: Final = (
    SamplingParams(max_tokens=1, temperature=0.0),
    SamplingParams(
        max_tokens=1,
        num_top_logprobs=1,
        logit_bias={0: 0.0},
        presence_penalty=1.0,
        repetition_penalty=2.0,
    ),
)


def warm_up_batches(max_num_batched_tokens: int) -> Iterator[FlatBatch]:
    """Prompts whose keys and values go to the null block."""
    for num_tokens in (_FEW, _MANY):
        for params in _DRAWS:
            yield _prompt(min(num_tokens, max_num_batched_tokens), params)


def _prompt(num_tokens: int, params: SamplingParams) -> FlatBatch:
    before = array("q", [0] * (num_tokens - 1))
    seen = SeenTokens(before, num_tokens) if params.has_penalties else None
    return FlatBatch(
        token_ids=[0] * num_tokens,
        positions=range(num_tokens),
        slots=[NULL_BLOCK] * num_tokens,
        segments=[Segment(0, num_tokens, 0, [NULL_BLOCK] * num_tokens)],
        sampled_rows=[
            SampledRow(num_tokens - 1, params, num_tokens, is_eos_banned=False, seen=seen)
        ],
    )
