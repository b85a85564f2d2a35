import pytest
import torch

from kernels.quantize.op import quantize
from kernels.quantize.reference import quantize_reference
from kernels.threads.team import ThreadTeam
from kernels.vector_ir.levels import FeatureLevel


def make(num_rows: int, size: int) -> torch.Tensor:
    x = torch.randn(num_rows, size, generator=torch.Generator().manual_seed(size))
    if num_rows:
        x[0, 7] = 8000.0  # an outlier, as residual streams have them: it must not drown its row
    return x


@pytest.mark.parametrize("shape", [(0, 32), (1, 32), (3, 96), (5, 1536)], ids=str)
def test_matches_reference(shape: tuple[int, int], level: FeatureLevel, team: ThreadTeam) -> None:
    x = make(*shape)
    codes, scales, sums = quantize(x, team, level)
    expected_codes, expected_scales = quantize_reference(x)
    assert torch.equal(codes, expected_codes)
    assert torch.equal(scales, expected_scales)
    assert torch.equal(sums, expected_codes.sum(-1).float())


def test_zeros_stay_zeros_and_codes_reach_both_ends(level: FeatureLevel, team: ThreadTeam) -> None:
    x = torch.zeros(1, 64)
    x[0, 32:34] = torch.tensor([-3.0, 3.0])
    codes, scales, _ = quantize(x, team, level)
    assert not codes[0, 0].any()
    assert scales[0, 0] == 0.0
    assert codes[0, 1, :2].tolist() == [-127, 127]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf], ids=str)
@pytest.mark.parametrize("place", [0, 9, 31])
def test_what_is_not_finite_is_not_lost(
    bad: float, place: int, level: FeatureLevel, team: ThreadTeam
) -> None:
    x = make(1, 64)
    x[0, place] = bad
    _, scales, _ = quantize(x, team, level)
    assert torch.isfinite(scales).tolist() == [[False, True]]


def test_rows_that_are_not_whole_groups_are_refused(team: ThreadTeam) -> None:
    with pytest.raises(ValueError, match="rows of 32s"):
        quantize(torch.zeros(1, 48), team)
