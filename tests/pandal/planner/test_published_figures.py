"""The planner reproduces arithmetic that others have published, figure by figure.

Each figure is rounded in its source; the tolerance is half of its last digit, unless said.
"""

import pytest

from pandal.planner import (
    cost,
    demand,
    disaggregation,
    memory,
    model_shape,
    roofline,
    speculation,
)
from pandal.planner.accelerator import find_accelerator
from pandal.planner.cost import ApiPrice
from pandal.planner.model_shape import find_model
from pandal.planner.precision import Precision
from pandal.planner.roofline import Hardware

H100 = find_accelerator("H100")
LLAMA_8B = find_model("Llama-3-8B")
LLAMA_70B = find_model("Llama-3-70B")
PARAMETERS_70B = 70e9  # as the sources round it
KV_70B = 320 * 1024
KIB, GIB = 2**10, 2**30


@pytest.mark.parametrize(("shape", "kib"), [(LLAMA_8B, 128), (LLAMA_70B, 320)], ids=["8B", "70B"])
def test_kv_cache_per_token(shape, kib: int) -> None:
    assert model_shape.kv_cache(shape, Precision.BF16).value == kib * KIB


@pytest.mark.parametrize(
    ("shape", "tokens", "gib"),
    [(LLAMA_8B, 8 * 1024, 1), (LLAMA_70B, 8 * 1024, 2.5), (LLAMA_70B, 128 * 1024, 40)],
    ids=["8B, 8K", "70B, 8K", "70B, 128K"],
)
def test_kv_cache_of_a_conversation(shape, tokens: int, gib: float) -> None:
    per_token = model_shape.kv_cache(shape, Precision.FP16).value
    assert memory.kv_bytes(tokens, per_token).value == gib * GIB


def test_weights_of_70b_in_fp16() -> None:
    assert memory.weight_bytes(PARAMETERS_70B, Precision.FP16).value == 140e9


def test_weights_of_8b_in_bf16() -> None:
    weights = memory.weight_bytes(LLAMA_8B.num_parameters, Precision.BF16)
    assert weights.value == pytest.approx(16e9, abs=0.5e9)


@pytest.mark.parametrize(
    ("name", "num_parameters"),
    [
        ("Llama-3-8B", 8_030_261_248),
        ("Llama-3-70B", 70_553_706_496),
        ("Llama-3.1-405B", 405_853_388_800),
        ("Mistral-7B-v0.3", 7_248_023_552),
        ("Mixtral-8x7B-v0.1", 46_702_792_704),
        ("Qwen2.5-7B", 7_615_616_512),
        ("Qwen2.5-72B", 72_706_203_648),
        ("SmolLM2-135M-Instruct", 134_515_008),
    ],
)
def test_parameters_are_those_that_are_published(name: str, num_parameters: int) -> None:
    assert find_model(name).num_parameters == num_parameters


def test_prefill_of_2000_tokens() -> None:
    flop = roofline.prefill_flop(PARAMETERS_70B, 2000).value
    assert flop == 280e12
    half_of_four = Hardware(H100, 4, Precision.FP16, compute_ratio=0.5)
    assert roofline.prefill_s(flop, half_of_four).value == pytest.approx(0.14, abs=0.005)


def decode_step_s(num_gpus: int) -> float:
    return roofline.decode_step_s(
        read_bytes=140e9,
        flop=2 * PARAMETERS_70B,
        communication_s=0.0,
        hardware=Hardware(H100, num_gpus, Precision.FP16),
    ).value


def test_decode_of_one_sequence() -> None:
    assert roofline.tokens_per_s(decode_step_s(1)).value == pytest.approx(24, abs=0.5)


def test_decode_on_four_gpus() -> None:
    assert decode_step_s(4) == pytest.approx(10.4e-3, abs=0.05e-3)


def test_where_compute_takes_over() -> None:
    ridge = roofline.ridge_flop_per_byte(H100, Precision.FP16)
    batch = roofline.compute_bound_batch(H100, Precision.FP16)
    assert ridge.value == pytest.approx(295, abs=0.5)
    assert batch.value == pytest.approx(295, abs=0.5)


def test_an_answer_of_400_tokens() -> None:
    answer = demand.answer_s(ttft_s=0.5, tpot_s=0.050, output_tokens=400)
    assert answer.value == pytest.approx(20, abs=0.5)


def test_sequences_of_4k_beside_70b_on_four_gpus() -> None:
    """132 GB: 85 % of four times 80, less 140."""
    space = memory.kv_space_bytes(H100, num_gpus=4, usable_ratio=0.85, weight_bytes=140e9)
    each = memory.kv_bytes(4096, KV_70B)
    assert space.value == pytest.approx(132e9)
    assert each.value == pytest.approx(1.34e9, abs=0.005e9)
    assert memory.max_sequences(space.value, each.value).value == 98


def test_speculation() -> None:
    assert speculation.tokens_per_pass(0.8, 4).value == pytest.approx(3.4, abs=0.05)


def test_kv_transfers_of_a_disaggregated_fleet() -> None:
    each = disaggregation.transfer_bytes(2000, KV_70B)
    rate = disaggregation.transfer_bytes_per_s(each.value, 10)
    assert each.value == pytest.approx(0.66e9, abs=0.005e9)
    assert rate.value * 8 == pytest.approx(52e9, abs=0.5e9)


@pytest.mark.parametrize(("tokens_per_s", "gpu_hours"), [(24, 11.6), (600, 0.46)])
def test_gpu_hours_per_million_tokens(tokens_per_s: float, gpu_hours: float) -> None:
    found = cost.gpu_hours_per_million_tokens(tokens_per_s).value
    assert found == pytest.approx(gpu_hours, rel=0.01)


def test_8b_on_one_gpu() -> None:
    """55 GB for the cache: 90 % of 80, less 16 of weights and 1 for activations."""
    weights = memory.weight_bytes(LLAMA_8B.num_parameters, Precision.BF16).value
    space = memory.kv_space_bytes(
        H100, num_gpus=1, usable_ratio=0.9, weight_bytes=weights, reserve_bytes=1e9
    )
    each = memory.kv_bytes(4000, 128 * KIB)
    assert space.value == pytest.approx(55e9, abs=0.5e9)
    assert each.value == pytest.approx(0.5e9, abs=0.05e9)


def test_70b_in_fp8_on_two_gpus() -> None:
    space = memory.kv_space_bytes(H100, num_gpus=2, usable_ratio=0.9, weight_bytes=70e9)
    each = memory.kv_bytes(3300, KV_70B)
    assert memory.max_sequences(space.value, each.value).value == 68


def test_a_fleet_for_50_requests_per_second() -> None:
    per_replica = demand.replica_requests_per_s(1140, 300).value
    replicas = demand.replicas(
        requests_per_s=50, headroom_ratio=0.3, requests_per_s_per_replica=per_replica
    ).value
    gpus = demand.gpus(int(replicas), 2).value
    assert per_replica == pytest.approx(3.8)
    assert (replicas, gpus) == (18, 36)
    assert cost.usd_per_day(gpus, 3).value == 2592


def test_an_api_for_the_same_requests() -> None:
    found = cost.api_usd_per_day(
        ApiPrice(3, 15), requests_per_day=1.44e6, prompt_tokens=3000, output_tokens=300
    )
    assert found.value == pytest.approx(19_440)


def test_littles_law_agrees_with_the_token_rate() -> None:
    residence_s = 300 * 0.042
    by_law = demand.little_requests_per_s(48, residence_s).value
    by_tokens = demand.replica_requests_per_s(
        demand.replica_tokens_per_s(48, 0.042).value, 300
    ).value
    assert residence_s == pytest.approx(12.6)
    assert by_law == pytest.approx(3.8, abs=0.05)
    assert by_tokens == pytest.approx(by_law)


@pytest.mark.parametrize(("gb_per_s", "load_s"), [(2, 70), (1, 140)])
def test_loading_140_gb(gb_per_s: float, load_s: float) -> None:
    assert memory.load_s(140e9, gb_per_s * 1e9).value == load_s
