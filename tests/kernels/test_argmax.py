import pytest
import torch

from kernels.argmax.op import argmax
from kernels.argmax.reference import argmax_reference
from kernels.threads.team import ThreadTeam
from kernels.vector_ir.levels import FeatureLevel


@pytest.mark.parametrize("shape", [(0, 16), (1, 16), (3, 1), (5, 4095), (2, 49152)], ids=str)
def test_matches_reference(shape: tuple[int, int], level: FeatureLevel, team: ThreadTeam) -> None:
    logits = torch.randn(*shape, generator=torch.Generator().manual_seed(2))
    assert torch.equal(argmax(logits, team, level), argmax_reference(logits))


def test_of_equals_the_first_wins(level: FeatureLevel, team: ThreadTeam) -> None:
    logits = torch.zeros(2, 64)
    logits[0, [17, 40]] = 1.0
    logits[1] = float("-inf")
    assert argmax(logits, team, level).tolist() == [17, 0]


def test_a_row_without_numbers_ends(team: ThreadTeam) -> None:
    assert argmax(torch.full((1, 32), torch.nan), team).tolist() == [31]


def test_rows_without_columns_are_refused(team: ThreadTeam) -> None:
    with pytest.raises(ValueError, match="at least one column"):
        argmax(torch.zeros(1, 0), team)
