import pytest
import torch

from kernels.rms_norm.op import add_rms_norm
from kernels.rms_norm.reference import add_rms_norm_reference
from kernels.threads.team import ThreadTeam
from kernels.vector_ir.levels import FeatureLevel

EPS = 1e-5


def make(num_rows: int, size: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(size)
    return (
        100 * torch.randn(num_rows, size, generator=generator),
        torch.randn(num_rows, size, generator=generator),
        torch.randn(size, generator=generator),
    )


@pytest.mark.parametrize("shape", [(0, 32), (1, 32), (3, 96), (7, 576), (2, 4096)], ids=str)
def test_matches_reference(shape: tuple[int, int], level: FeatureLevel, team: ThreadTeam) -> None:
    arguments = make(*shape)
    total, y = add_rms_norm(*arguments, EPS, team, level)
    expected_total, expected_y = add_rms_norm_reference(*arguments, EPS)
    assert torch.equal(total, expected_total)
    torch.testing.assert_close(y, expected_y, rtol=1e-6, atol=1e-6)


def test_a_row_does_not_depend_on_its_neighbours(level: FeatureLevel, team: ThreadTeam) -> None:
    residual, delta, weight = make(9, 160)
    _, together = add_rms_norm(residual, delta, weight, EPS, team, level)
    for row in range(9):
        only = slice(row, row + 1)
        _, alone = add_rms_norm(residual[only], delta[only], weight, EPS, team, level)
        assert torch.equal(alone, together[only])


def test_a_row_of_zeros_stays_zero_and_nan_is_not_lost(team: ThreadTeam) -> None:
    residual, delta, weight = torch.zeros(2, 64), torch.zeros(2, 64), torch.ones(64)
    residual[1, 5] = torch.nan
    _, y = add_rms_norm(residual, delta, weight, EPS, team)
    assert torch.equal(y[0], torch.zeros(64))
    assert torch.isnan(y[1]).all()


def test_odd_sizes_are_refused(team: ThreadTeam) -> None:
    with pytest.raises(ValueError, match="rows of 32s"):
        add_rms_norm(*make(1, 33), EPS, team)
    with pytest.raises(ValueError, match="do not match"):
        add_rms_norm(torch.zeros(1, 32), torch.zeros(2, 32), torch.zeros(32), EPS, team)
