"""A plan hangs together: its formulas give its values, and its choices what was asked for."""

import ast
import math
from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pandal.errors import BadOption
from pandal.planner.accelerator import find_accelerator, known_accelerators
from pandal.planner.deployment import make_plan
from pandal.planner.figure import label
from pandal.planner.model_shape import ModelShape, find_model, known_models
from pandal.planner.precision import Precision
from pandal.planner.question import Question
from tests.pandal.planner.questions import MEASURED, question

OPERATORS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
    ast.Pow: lambda a, b: a**b,
}
FUNCTIONS = {"max": max, "floor": math.floor, "ceil": math.ceil}


def evaluated(expression: str) -> float:
    return _evaluated(ast.parse(expression, mode="eval").body)


def _evaluated(node: ast.expr) -> float:
    match node:
        case ast.Constant(value=int() | float() as value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_evaluated(operand)
        case ast.BinOp(left=left, op=op, right=right):
            return OPERATORS[type(op)](_evaluated(left), _evaluated(right))
        case ast.Call(func=ast.Name(id=name), args=arguments):
            return FUNCTIONS[name](*map(_evaluated, arguments))
    raise AssertionError(ast.dump(node))


@pytest.mark.parametrize(
    "asked",
    [
        question(),
        question(MEASURED),
        question(max_tpot_s=0.05),
        question(requests_per_s=None),
        question(requests_per_day=None, num_gpus=8, weight_precision=Precision.BF16),
        question(shape=find_model("Mixtral-8x7B-v0.1"), gpu=find_accelerator("A100")),
    ],
    ids=["fp8", "measured", "tpot", "no demand", "tp8", "experts"],
)
def test_every_formula_gives_its_figure(asked: Question) -> None:
    plan = make_plan(asked)
    figures = [figure for section in plan.sections for figure in section.figures]
    assert len(figures) > 20
    for figure in figures:
        assert evaluated(figure.numbers) == pytest.approx(figure.value, rel=1e-4), figure.name
        assert figure.formula
    assert len({figure.name for figure in figures}) == len(figures)


def test_a_measured_replica_makes_the_fleet_that_was_published() -> None:
    """48 sequences at 42 ms: 3.8 requests/s, 18 replicas, 36 GPUs, $2,592 against $19,440."""
    plan = make_plan(question(MEASURED))
    figures = plan.figures
    assert figures["requests_per_s"] == pytest.approx(3.8)
    assert (plan.num_replicas, plan.gpus_per_replica, figures["num_gpus"]) == (18, 2, 36)
    assert figures["usd_per_day"] == 2592
    assert figures["api_usd_per_day"] == pytest.approx(19_440)
    assert figures["requests_per_s_by_littles_law"] == pytest.approx(3.8, rel=0.05)


def test_theory_is_shown_beside_the_measurement_at_its_batch() -> None:
    plan = make_plan(question(MEASURED))
    at_48 = make_plan(question(max_batch=48))
    assert plan.figures["tpot_s_by_theory"] == at_48.figures["tpot_s"]
    ratio = plan.figures["tpot_s_measured_over_theory"]
    assert ratio == pytest.approx(0.042 / at_48.figures["tpot_s"])


def test_a_measurement_far_from_theory_is_a_warning() -> None:
    far_off = make_plan(question(replace(MEASURED, tpot_s=1.0)))
    assert any("TPOT measured over theory is" in warning for warning in far_off.warnings)
    theory = make_plan(question(max_batch=48)).figures
    exact = replace(
        MEASURED,
        ttft_s=theory["ttft_s"],
        tpot_s=theory["tpot_s"],
        output_tokens_per_s=theory["output_tokens_per_s"],
    )
    assert make_plan(question(exact)).warnings == ()


def test_a_measurement_of_other_lengths_is_a_warning() -> None:
    plan = make_plan(question(MEASURED, prompt_tokens=500))
    assert any("other lengths" in warning for warning in plan.warnings)


def test_little_agrees_with_the_token_rate_of_every_theory() -> None:
    """Within the one token and the one step by which the two count differently."""
    figures = make_plan(question()).figures
    assert figures["requests_per_s_by_littles_law"] == pytest.approx(
        figures["requests_per_s"], rel=0.02
    )


@given(st.floats(min_value=0.005, max_value=0.2))
def test_the_batch_is_the_largest_that_keeps_the_time_per_token(max_tpot_s: float) -> None:
    plan = make_plan(question(max_tpot_s=max_tpot_s))
    if plan.figures["tpot_s"] > max_tpot_s:
        assert plan.max_sequences == 1
        assert plan.warnings
    else:
        larger = make_plan(question(max_batch=plan.max_sequences + 1))
        is_all = plan.max_sequences == plan.figures["max_sequences"]
        assert is_all or larger.figures["tpot_s"] > max_tpot_s


@pytest.mark.parametrize("precision", [Precision.BF16, Precision.FP8, Precision.INT4])
def test_the_fewest_gpus_that_hold_enough_are_taken(precision: Precision) -> None:
    plan = make_plan(question(weight_precision=precision))
    expected = {Precision.BF16: 4, Precision.FP8: 2, Precision.INT4: 1}
    assert plan.gpus_per_replica == expected[precision]


@pytest.mark.parametrize("name", known_models())
def test_every_known_model_has_a_plan_on_the_largest_gpu(name: str) -> None:
    asked = question(shape=find_model(name), gpu=find_accelerator("B200"), prompt_tokens=1000)
    plan = make_plan(asked)
    assert plan.num_replicas is not None
    assert plan.num_replicas >= 1
    assert plan.warnings == ()


@pytest.mark.parametrize("name", known_accelerators())
def test_every_known_gpu_holds_a_small_model(name: str) -> None:
    asked = question(shape=find_model("Llama-3.1-8B"), gpu=find_accelerator(name))
    assert make_plan(asked).gpus_per_replica == 1


def test_a_model_that_does_not_fit_the_gpus_asked_for_is_refused() -> None:
    with pytest.raises(BadOption, match="1 x H100 cannot hold Llama-3-70B in bf16"):
        make_plan(question(num_gpus=1, weight_precision=Precision.BF16))


def test_a_prompt_beyond_the_context_is_a_warning() -> None:
    warnings = make_plan(question(prompt_tokens=10_000)).warnings
    assert any("more than the model's context" in warning for warning in warnings)


def test_experts_are_read_as_they_are_hit() -> None:
    """One token passes through two of eight; many tokens pass through all."""
    mixtral = find_model("Mixtral-8x7B-v0.1")
    assert mixtral.num_parameters == pytest.approx(46.7e9, rel=0.001)
    assert mixtral.num_active_parameters == pytest.approx(12.9e9, rel=0.002)
    looked_up = mixtral.config.vocab_size * mixtral.config.hidden_size
    assert mixtral.num_read_parameters(1) == pytest.approx(mixtral.num_multiplied_parameters)
    assert mixtral.num_read_parameters(256) == pytest.approx(mixtral.num_parameters - looked_up)


def test_the_input_embedding_is_looked_up_unless_it_is_the_output_matrix_too() -> None:
    own, tied = find_model("Llama-3-8B"), find_model("SmolLM2-135M-Instruct")
    looked_up = own.config.vocab_size * own.config.hidden_size
    assert own.num_multiplied_parameters == own.num_parameters - looked_up
    assert tied.num_multiplied_parameters == tied.num_parameters
    figures = make_plan(question(shape=own)).figures
    assert figures["prefill_flop"] == 2 * (own.num_parameters - looked_up) * 3000


def heads(num_heads: int, num_kv_heads: int) -> ModelShape:
    shape = find_model("Llama-3-8B")
    return replace(
        shape,
        config=msgspec.structs.replace(
            shape.config, num_attention_heads=num_heads, num_key_value_heads=num_kv_heads
        ),
    )


@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "num_gpus"),
    [(32, 8, 8), (28, 4, 4), (9, 3, 1), (12, 3, 1), (6, 2, 2)],
)
def test_only_gpus_that_share_the_heads_evenly_are_taken(
    num_heads: int, num_kv_heads: int, num_gpus: int
) -> None:
    asked = question(shape=heads(num_heads, num_kv_heads), max_batch=1)
    share_bytes = asked.serving.shape.num_parameters / num_gpus
    gpu = msgspec.structs.replace(asked.serving.gpu, memory_gb=share_bytes * 1.4 / 1e9)
    plan = make_plan(replace(asked, serving=replace(asked.serving, gpu=gpu)))
    assert plan.gpus_per_replica == num_gpus


@pytest.mark.parametrize(("num_heads", "num_kv_heads", "most"), [(28, 4, 4), (9, 3, 1), (12, 3, 1)])
def test_what_the_heads_do_not_allow_is_not_tried(
    num_heads: int, num_kv_heads: int, most: int
) -> None:
    asked = question(shape=heads(num_heads, num_kv_heads), max_batch=1)
    gpu = msgspec.structs.replace(asked.serving.gpu, memory_gb=1.2)
    with pytest.raises(BadOption, match=f"--gpu: {most} x H100 cannot hold"):
        make_plan(replace(asked, serving=replace(asked.serving, gpu=gpu)))


def test_gpus_asked_for_that_do_not_share_the_heads_are_refused() -> None:
    with pytest.raises(BadOption, match="28 attention heads and 4 KV heads of Llama-3-8B do not"):
        make_plan(question(shape=heads(28, 4), num_gpus=8))


def test_with_fewer_kv_heads_than_gpus_some_are_held_twice() -> None:
    once, twice = (
        make_plan(question(shape=heads(32, num_kv_heads), num_gpus=8, max_batch=1)).figures
        for num_kv_heads in (8, 4)
    )
    assert (once["kv_copies"], twice["kv_copies"]) == (1, 2)
    assert twice["kv_bytes_per_token"] == once["kv_bytes_per_token"] / 2
    assert twice["kv_bytes_per_request"] == once["kv_bytes_per_request"]


def test_labels_are_words_not_names_of_variables() -> None:
    plan = make_plan(question(MEASURED))
    figures = [figure for section in plan.sections for figure in section.figures]
    labels = [label(figure) for figure in figures]
    assert {
        "prefill at peak",
        "decode step at peak",
        "prefill work",
        "TTFT by theory",
        "TPOT measured over theory",
        "requests per second by Little's law",
    } <= set(labels)
    assert len(set(labels)) == len(labels)
    for text in labels:
        assert "_" not in text
        assert "second" not in text.replace("per second", "")
        assert "flop" not in text.casefold()


def test_more_gpus_per_replica_are_faster_and_never_free() -> None:
    steps = [make_plan(question(num_gpus=n)).figures for n in (2, 4, 8)]
    assert steps[0]["decode_step_s_at_peak"] == 2 * steps[1]["decode_step_s_at_peak"]
    assert all(figures["all_reduces_s"] > 0 for figures in steps)
    assert (
        make_plan(question(num_gpus=1, weight_precision=Precision.INT4)).figures["all_reduces_s"]
        == 0
    )
