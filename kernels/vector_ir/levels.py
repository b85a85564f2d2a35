"""What a CPU can do, as far as the kernels care.

A level fixes the vector width and which target instructions may appear.  Results of one level are
the same on every machine that runs it; two levels differ in summation order where lanes are summed.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import llvmlite.binding as llvm


class FeatureLevel(StrEnum):
    """From the most capable to the one every machine has."""

    AVX512_VNNI = "avx512_vnni"
    AVX512 = "avx512"
    AVX2 = "avx2"
    PORTABLE = "portable"  # LLVM's generic vectors: any x86-64, ARM

    @property
    def lanes(self) -> int:
        """float32 lanes of a vector."""
        return _LANES[self]

    @property
    def num_accumulators(self) -> int:
        """Vectors a tile may keep in registers beside its operands."""
        return _NUM_ACCUMULATORS[self]


_LANES: Final = {
    FeatureLevel.AVX512_VNNI: 16,
    FeatureLevel.AVX512: 16,
    FeatureLevel.AVX2: 8,
    FeatureLevel.PORTABLE: 4,
}
# 32 registers with AVX-512, 16 with AVX2 and SSE; ARM's 32 are not told apart from SSE's 16.
_NUM_ACCUMULATORS: Final = {
    FeatureLevel.AVX512_VNNI: 24,
    FeatureLevel.AVX512: 24,
    FeatureLevel.AVX2: 12,
    FeatureLevel.PORTABLE: 12,
}
_NEEDS: Final[Mapping[FeatureLevel, tuple[str, ...]]] = {
    FeatureLevel.AVX512_VNNI: ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512vnni"),
    FeatureLevel.AVX512: ("avx512f", "avx512bw", "avx512dq", "avx512vl"),
    FeatureLevel.AVX2: ("avx2", "fma", "f16c"),
    FeatureLevel.PORTABLE: (),
}


def host_features() -> Mapping[str, bool]:
    """LLVM's names of what this CPU, as seen through its hypervisor, offers."""
    return dict(llvm.get_host_cpu_features())


def runnable_levels(features: Mapping[str, bool]) -> tuple[FeatureLevel, ...]:
    """Best first; never empty."""
    return tuple(
        level for level in FeatureLevel if all(features.get(name, False) for name in _NEEDS[level])
    )


def detect_level() -> FeatureLevel:
    return runnable_levels(host_features())[0]
