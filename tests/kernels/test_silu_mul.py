import pytest
import torch

from kernels.silu_mul.op import silu_mul
from kernels.silu_mul.reference import silu_mul_reference
from kernels.threads.team import ThreadTeam
from kernels.vector_ir.levels import FeatureLevel


@pytest.mark.parametrize("shape", [(0, 64), (1, 64), (3, 192), (2, 3072)], ids=str)
def test_matches_reference(shape: tuple[int, int], level: FeatureLevel, team: ThreadTeam) -> None:
    gate_up = 10 * torch.randn(*shape, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(
        silu_mul(gate_up, team, level), silu_mul_reference(gate_up), rtol=2e-6, atol=1e-6
    )


def test_far_from_zero_it_neither_overflows_nor_loses_the_sign(team: ThreadTeam) -> None:
    gate_up = torch.ones(1, 64)
    gate_up[0, :3] = torch.tensor([-1e30, 1e30, 0.0])
    y = silu_mul(gate_up, team)
    assert -1e-7 <= y[0, 0] <= 0.0
    assert y[0, 1] == 1e30
    assert y[0, 2] == 0.0


def test_odd_widths_are_refused(team: ThreadTeam) -> None:
    with pytest.raises(ValueError, match="two halves of 32s"):
        silu_mul(torch.zeros(1, 96), team)
