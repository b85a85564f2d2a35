"""Layers of experts, shaped like Mixtral's and Qwen3's, against one token after the other."""

from collections.abc import Iterator

import pytest
import torch

from tests.kernels.triton_runs import DTYPES, assert_near, numbers, poisoned_memory

op = pytest.importorskip("kernels.moe.op")
reference = pytest.importorskip("kernels.moe.reference")

SHAPES = {  # experts, top_k, hidden, intermediate, renormalized
    "mixtral": (8, 2, 32, 48, True),
    "qwen3": (9, 4, 40, 24, True),
    "not-renormalized": (5, 3, 17, 9, False),
    "one-expert": (1, 1, 16, 16, True),
}


@pytest.fixture(autouse=True)
def _poisoned() -> Iterator[None]:
    with poisoned_memory():
        yield


def experts_of(shape: str, dtype: torch.dtype) -> "op.Experts":
    num_experts, top_k, hidden, intermediate, is_renormalized = SHAPES[shape]
    return op.Experts(
        gate_up=0.3 * numbers(num_experts, 2 * intermediate, hidden, dtype=dtype),
        down=0.3 * numbers(num_experts, hidden, intermediate, dtype=dtype),
        top_k=top_k,
        is_renormalized=is_renormalized,
    )


@DTYPES
@pytest.mark.parametrize("shape", SHAPES)
def test_matches_reference(shape: str, dtype: torch.dtype) -> None:
    experts = experts_of(shape, dtype)
    x, logits = numbers(5, experts.down.shape[1], dtype=dtype), numbers(5, len(experts.down))
    expected = reference.moe_reference(x, logits, experts)
    assert_near(op.moe(x, logits, experts), expected, dtype, factor=10)


def test_no_tokens() -> None:
    experts = experts_of("mixtral", torch.float32)
    assert op.moe(numbers(0, 32), numbers(0, 8), experts).shape == (0, 32)


def test_a_tokens_answer_does_not_depend_on_its_company() -> None:
    experts = experts_of("qwen3", torch.float32)
    x, logits = numbers(6, 40), numbers(6, 9)
    together = op.moe(x, logits, experts)
    assert torch.equal(op.moe(x[4:5], logits[4:5], experts)[0], together[4])
