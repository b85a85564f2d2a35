import pytest
import torch

from kernels.paged_attention.formats import AttentionSpecialization, KvFormat
from kernels.paged_attention.reference import dense_keys, dense_values
from kernels.rotary.op import rotary
from kernels.rotary.reference import rotary_reference
from kernels.threads.team import ThreadTeam
from kernels.vector_ir.levels import FeatureLevel

NUM_KV_HEADS = 2
SLOTS = torch.tensor([3 * 16 + 15, 0, 16])  # the last place of a block, and the first of two


def angle_tables(head_dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    angles = torch.arange(40.0)[:, None] * 0.7 ** torch.arange(head_dim // 2)[None, :]
    return angles.cos(), angles.sin()


@pytest.mark.parametrize("kv_format", list(KvFormat), ids=str)
@pytest.mark.parametrize("head_dim", [64, 96], ids=str)
def test_queries_turn_and_keys_and_values_land_in_their_slots(
    head_dim: int, kv_format: KvFormat, level: FeatureLevel, team: ThreadTeam
) -> None:
    spec = AttentionSpecialization(level, kv_format, head_dim, group_size=3, block_size=16)
    size = (5, NUM_KV_HEADS, spec.block_head_bytes)
    keys, values = torch.zeros(2, *size, dtype=torch.uint8)
    qkv = torch.randn(3, 10 * head_dim, generator=torch.Generator().manual_seed(3))
    positions = torch.tensor([31, 0, 5])
    cos, sin = angle_tables(head_dim)
    heads = qkv.clone().view(3, 10, head_dim)

    rotary(spec, qkv, (positions, SLOTS), (cos, sin), (keys, values), team)

    turned = rotary_reference(heads[:, :8], cos[positions], sin[positions])
    torch.testing.assert_close(qkv.view(3, 10, head_dim)[:, :6], turned[:, :6])
    block, offset = SLOTS // 16, SLOTS % 16
    stored_keys, stored_values = dense_keys(keys, spec), dense_values(values, spec)
    assert_stored(stored_keys[block, :, :, offset], turned[:, 6:], kv_format)
    assert_stored(stored_values[block, :, offset], heads[:, 8:], kv_format)
    stored_keys[block, :, :, offset] = 0.0
    stored_values[block, :, offset] = 0.0
    assert not stored_keys.any()
    assert not stored_values.any()


def assert_stored(stored: torch.Tensor, written: torch.Tensor, kv_format: KvFormat) -> None:
    """[tokens, heads, head_dim]: rounded to what the format holds, not more."""
    if kv_format is KvFormat.FLOAT32:
        torch.testing.assert_close(stored, written)
    elif kv_format is KvFormat.BFLOAT16:
        torch.testing.assert_close(stored, written.bfloat16().float())
    else:
        half_step = written.abs().amax(-1, keepdim=True) / 127 / 2
        assert ((stored - written).abs() <= 1.001 * half_step).all()


def test_rows_of_another_width_are_refused(team: ThreadTeam) -> None:
    spec = AttentionSpecialization(FeatureLevel.PORTABLE, KvFormat.FLOAT32, 64, 3, 16)
    empty = torch.zeros(1, 1, 64, 16)
    places = (torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64))
    with pytest.raises(ValueError, match="contiguous rows of 320"):
        rotary(spec, torch.zeros(1, 321), places, angle_tables(64), (empty, empty), team)
