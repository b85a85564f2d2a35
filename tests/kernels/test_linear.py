"""Every weight format against float32 math on its dequantized weights."""

from collections.abc import Callable

import gguf
import numpy as np
import numpy.typing as npt
import pytest
import torch

from kernels.linear.formats import INTEGER_FORMATS, ActivationFormat, WeightFormat
from kernels.linear.op import linear
from kernels.linear.packing import PackedWeight, pack, pack_bfloat16, pack_float32, pack_gguf
from kernels.linear.reference import linear_reference, unpack
from kernels.threads.team import ThreadTeam
from kernels.vector_ir.levels import FeatureLevel

GGUF_TYPES = {
    WeightFormat.Q4_0: gguf.GGMLQuantizationType.Q4_0,
    WeightFormat.Q4_1: gguf.GGMLQuantizationType.Q4_1,
    WeightFormat.Q8_0: gguf.GGMLQuantizationType.Q8_0,
}
ALL_FORMATS = pytest.mark.parametrize("weight_format", list(WeightFormat), ids=str)


def make_weight(
    weight_format: WeightFormat, out_features: int, in_features: int
) -> tuple[PackedWeight, npt.NDArray[np.float32]]:
    """Packed, and the float32 values its file means."""
    generator = np.random.default_rng(out_features + in_features)
    dense = generator.standard_normal((out_features, in_features)).astype(np.float32)
    if weight_format is WeightFormat.FLOAT32:
        return pack_float32(dense), dense
    if weight_format is WeightFormat.BFLOAT16:
        bits = (dense.view(np.uint32) >> 16).astype(np.uint16)
        return pack_bfloat16(bits), (bits.astype(np.uint32) << 16).view(np.float32)
    kind = GGUF_TYPES[weight_format]
    blocks = gguf.quants.quantize(dense, kind)
    return pack_gguf(blocks, weight_format), gguf.quants.dequantize(blocks, kind)


def make_rows(num_rows: int, in_features: int) -> torch.Tensor:
    return torch.randn(num_rows, in_features, generator=torch.Generator().manual_seed(num_rows))


@ALL_FORMATS
@pytest.mark.parametrize("out_features", [1, 32, 100], ids=str)
def test_packed_weights_mean_what_the_file_means(
    weight_format: WeightFormat, out_features: int
) -> None:
    packed, dense = make_weight(weight_format, out_features, 96)
    np.testing.assert_array_equal(unpack(packed), dense)


@ALL_FORMATS
@pytest.mark.parametrize("num_rows", [0, 1, 3, 7, 16, 37], ids=str)
def test_matches_reference(
    weight_format: WeightFormat, num_rows: int, level: FeatureLevel, team: ThreadTeam
) -> None:
    packed, _ = make_weight(weight_format, 100, 160)
    x = make_rows(num_rows, 160)
    torch.testing.assert_close(
        linear(x, packed, team, level), linear_reference(x, packed), rtol=1e-5, atol=2e-5
    )


@pytest.mark.parametrize("shape", [(960, 576), (576, 1536)], ids=str)
def test_matches_reference_at_a_models_shapes(
    shape: tuple[int, int], level: FeatureLevel, team: ThreadTeam
) -> None:
    packed, _ = make_weight(WeightFormat.Q4_1, *shape)
    x = make_rows(5, shape[1])
    torch.testing.assert_close(
        linear(x, packed, team, level), linear_reference(x, packed), rtol=1e-5, atol=1e-4
    )


@ALL_FORMATS
def test_a_rows_result_does_not_depend_on_the_rows_beside_it(
    weight_format: WeightFormat, level: FeatureLevel, team: ThreadTeam
) -> None:
    packed, _ = make_weight(weight_format, 64, 288)
    x = make_rows(64, 288)
    alone = torch.cat([linear(x[i : i + 1], packed, team, level) for i in range(64)])
    for num_rows in range(1, 65):
        assert torch.equal(linear(x[:num_rows], packed, team, level), alone[:num_rows]), num_rows


def test_a_rows_result_does_not_depend_on_the_number_of_threads(
    level: FeatureLevel, new_team: Callable[[int], ThreadTeam]
) -> None:
    packed, _ = make_weight(WeightFormat.Q4_1, 96, 64)
    x = make_rows(5, 64)
    with new_team(1) as one, new_team(3) as three:
        assert torch.equal(linear(x, packed, one, level), linear(x, packed, three, level))


def test_one_rows_infinity_stays_in_its_row(team: ThreadTeam) -> None:
    packed, _ = make_weight(WeightFormat.Q8_0, 32, 32)
    x = make_rows(9, 32)
    clean = linear(x, packed, team)
    x[4, 3] = torch.inf
    dirty = linear(x, packed, team)
    others = [row for row in range(9) if row != 4]
    assert torch.equal(dirty[others], clean[others])
    assert not torch.isfinite(dirty[4]).any()


def test_wrong_shapes_are_refused(team: ThreadTeam) -> None:
    packed, _ = make_weight(WeightFormat.FLOAT32, 32, 64)
    with pytest.raises(ValueError, match=r"expected float32 \[num_tokens, 64\]"):
        linear(make_rows(2, 32), packed, team)
    with pytest.raises(ValueError, match="multiple of 32 inputs"):
        pack_float32(np.zeros((32, 33), np.float32))
    with pytest.raises(ValueError, match="20-byte blocks"):
        pack_gguf(np.zeros((32, 33), np.uint8), WeightFormat.Q4_1)


INTEGER_CASES = pytest.mark.parametrize("weight_format", INTEGER_FORMATS, ids=str)


@INTEGER_CASES
@pytest.mark.parametrize("num_rows", [0, 1, 2, 31, 32, 33, 65], ids=str)
def test_int8_activations_match_reference(
    weight_format: WeightFormat, num_rows: int, level: FeatureLevel, team: ThreadTeam
) -> None:
    packed, _ = make_weight(weight_format, 100, 160)
    x = make_rows(num_rows, 160)
    torch.testing.assert_close(
        linear(x, packed, team, level, ActivationFormat.INT8),
        linear_reference(x, packed, ActivationFormat.INT8),
        rtol=1e-5,
        atol=2e-5,
    )


@INTEGER_CASES
def test_the_largest_codes_do_not_overflow(
    weight_format: WeightFormat, level: FeatureLevel, team: ThreadTeam
) -> None:
    """Both ends of both: sums of 16 bits would wrap, or saturate, first here."""
    row = [-1.0, 1.0] if weight_format is WeightFormat.Q4_1 else [-1.0, 127 / 128]
    dense = np.array(row * 16 + row[::-1] * 16 + row[:1] * 64, np.float32).reshape(1, -1)
    blocks = gguf.quants.quantize(np.repeat(dense, 32, 0), GGUF_TYPES[weight_format])
    packed = pack_gguf(blocks, weight_format)
    x = torch.cat([torch.from_numpy(dense), -torch.from_numpy(dense), torch.ones(1, 128)])
    torch.testing.assert_close(
        linear(x, packed, team, level, ActivationFormat.INT8),
        linear_reference(x, packed, ActivationFormat.INT8),
        rtol=1e-6,
        atol=1e-5,
    )


@INTEGER_CASES
def test_int8_rows_do_not_depend_on_the_rows_beside_them(
    weight_format: WeightFormat, level: FeatureLevel, team: ThreadTeam
) -> None:
    packed, _ = make_weight(weight_format, 64, 288)
    x = make_rows(64, 288)

    def product(rows: torch.Tensor) -> torch.Tensor:
        return linear(rows, packed, team, level, ActivationFormat.INT8)

    alone = torch.cat([product(x[i : i + 1]) for i in range(64)])
    for num_rows in (1, 2, 3, 31, 32, 33, 63, 64):
        assert torch.equal(product(x[:num_rows]), alone[:num_rows]), num_rows


def test_int8_activations_need_integer_weights(team: ThreadTeam) -> None:
    packed, _ = make_weight(WeightFormat.BFLOAT16, 32, 64)
    with pytest.raises(ValueError, match="expected integer weights, got bfloat16"):
        linear(make_rows(2, 64), packed, team, None, ActivationFormat.INT8)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf], ids=str)
@pytest.mark.parametrize("weight_format", [WeightFormat.BFLOAT16, WeightFormat.Q8_0], ids=str)
def test_what_is_no_number_is_not_rounded_to_one(weight_format: WeightFormat, value: float) -> None:
    weight = np.ones((3, 64), np.float32)
    pack(weight, weight_format)
    weight[1, 40] = value
    with pytest.raises(ValueError, match="not finite"):
        pack(weight, weight_format)


def test_a_weight_without_a_scale_of_q8_0_is_refused() -> None:
    with pytest.raises(ValueError, match="too large"):
        pack(np.full((1, 32), 1e8, np.float32), WeightFormat.Q8_0)
