"""What tests of Triton's kernels share: where they run, how far off they may be, poison."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

pytest.importorskip("triton", reason="Triton has no package for this system")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# (rtol, atol) against float32: two roundings, of which the interpreter's bfloat16 is a truncation.
TOLERANCE = {torch.float32: (2e-5, 2e-6), torch.bfloat16: (2e-2, 1e-2)}
# A shape like others: interpreted only when asked for by --whole-triton.
WHOLE = pytest.mark.whole_triton
DTYPES = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)


@contextmanager
def poisoned_memory() -> Iterator[None]:
    """What is allocated holds NaN, or the largest integer, until it is written."""
    torch.set_deterministic_debug_mode("error")  # the other way to ask imports torch's compiler
    try:
        assert torch.empty(3, device=DEVICE).isnan().all()
        yield
    finally:
        torch.set_deterministic_debug_mode("default")


def numbers(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """Of a normal distribution; never zeros, which are faster and hide mistakes."""
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator).to(DEVICE, dtype)


def assert_near(
    result: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype, factor: float = 1.0
) -> None:
    rtol, atol = TOLERANCE[dtype]
    torch.testing.assert_close(result.float(), expected.float(), rtol=rtol, atol=factor * atol)
