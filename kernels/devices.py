"""Where Triton's kernels run: compiled on a GPU, or interpreted on a CPU with TRITON_INTERPRET=1.

The variable counts when Triton is first imported; which of the two it was, is known from then on.
"""

from collections.abc import Callable
from typing import Any, Final

import torch
import triton
import triton.language as tl

FindProgram = Callable[[str], str | None]

IS_INTERPRETED: Final = bool(triton.knobs.runtime.interpret)
NAMED_COMPILER: Final[str | None] = triton.knobs.build.cc  # by CC


def runs_triton(x: torch.Tensor) -> bool:
    """Whether a kernel can read it.  Elsewhere an op computes its definition."""
    return x.is_cuda or IS_INTERPRETED


def compiler_obstacle(find_program: FindProgram, named: str | None = NAMED_COMPILER) -> str | None:
    """Why kernels cannot be launched on a GPU here: what launches them Triton compiles from C."""
    names = ("gcc", "clang") if named is None else (named,)
    if any(find_program(name) is not None for name in names):
        return None
    return f"Triton needs a C compiler: there is no {' and no '.join(names)} (CC names another)"


def dot_dtype(dtype: torch.dtype) -> Any:  # triton.language.dtype
    """What ``tl.dot`` multiplies such tensors as: the interpreter multiplies no bfloat16."""
    return tl.float32 if IS_INTERPRETED else _TRITON_DTYPES[dtype]


_TRITON_DTYPES: Final = {
    torch.float32: tl.float32,
    torch.float16: tl.float16,
    torch.bfloat16: tl.bfloat16,
}


def num_multiprocessors(device: torch.device) -> int:
    """How many programs it runs at a time; 1 for a CPU."""
    if device.type != "cuda":
        return 1
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
