"""How long a step takes at least: the time to move its bytes, or to do its operations.

Source: Williams, Waterman, Patterson, "Roofline: an insightful visual performance model", 2009.
Efficiencies are what a real engine reaches of a data sheet's peak; 1 is the bound itself.
"""

from dataclasses import dataclass

from pandal.planner.accelerator import Accelerator
from pandal.planner.figure import Figure, Unit
from pandal.planner.model_shape import ModelShape
from pandal.planner.precision import Precision

ALL_REDUCES_PER_LAYER = 2  # after attention and after the MLP
ALL_REDUCE_LATENCY_S = 10e-6  # of one small all-reduce between neighbours on one machine
_ACTIVATION_BYTES = 2  # bf16 between GPUs, whatever the weights are


@dataclass(frozen=True, slots=True)
class Hardware:
    """The GPUs of one replica, and how much of their peak an engine reaches."""

    gpu: Accelerator
    num_gpus: int
    precision: Precision  # of the weights
    compute_ratio: float = 1.0
    bandwidth_ratio: float = 1.0

    @property
    def flop_per_s(self) -> float:
        return self.num_gpus * self.gpu.flop_per_s(self.precision) * self.compute_ratio

    @property
    def bytes_per_s(self) -> float:
        return self.num_gpus * self.gpu.bandwidth_bytes_per_s * self.bandwidth_ratio


def prefill_flop(num_multiplied_parameters: float, prompt_tokens: float) -> Figure:
    """A multiplication and an addition per parameter and token.

    The output matrix is among them, as is the custom, though engines multiply by it only for the
    prompt's last token.
    """
    return Figure(
        "prefill_flop",
        2 * num_multiplied_parameters * prompt_tokens,
        Unit.FLOP,
        "2 x active parameters without the input embedding x prompt tokens",
        f"2 * {num_multiplied_parameters:.0f} * {prompt_tokens:g}",
    )


def attention_flop(shape: ModelShape, prompt_tokens: float) -> Figure:
    """Scores and weighted values over the causal half: small until prompts are long."""
    width = shape.config.num_attention_heads * shape.head_dim
    return Figure(
        "prefill_attention_flop",
        2 * shape.num_layers * width * prompt_tokens**2,
        Unit.FLOP,
        "2 x layers x attention width x prompt tokens squared",
        f"2 * {shape.num_layers} * {width} * {prompt_tokens:g} ** 2",
    )


def prefill_s(flop: float, hardware: Hardware) -> Figure:
    return Figure(
        "prefill_s",
        flop / hardware.flop_per_s,
        Unit.SECONDS,
        "operations / (GPUs x peak operations per second x compute efficiency)",
        f"{flop:.6g} / ({_peak_flop(hardware)})",
    )


def decode_step_s(
    *, read_bytes: float, flop: float, communication_s: float, hardware: Hardware
) -> Figure:
    """``read_bytes``: weights once, and the KV cache of every sequence in the batch."""
    memory_s = read_bytes / hardware.bytes_per_s
    compute_s = flop / hardware.flop_per_s
    bandwidth = (
        f"{hardware.num_gpus} * {hardware.gpu.bandwidth_bytes_per_s:g}"
        f" * {hardware.bandwidth_ratio:g}"
    )
    return Figure(
        "decode_step_s",
        max(memory_s, compute_s) + communication_s,
        Unit.SECONDS,
        "max(bytes read / bandwidth, operations / compute) + all-reduces",
        f"max({read_bytes:.6g} / ({bandwidth}), {flop:.6g} / ({_peak_flop(hardware)}))"
        f" + {communication_s:.6g}",
    )


def all_reduce_s(shape: ModelShape, *, num_tokens: float, hardware: Hardware) -> Figure:
    """A ring moves 2 (n - 1) / n of the activations over every GPU's link."""
    num_gpus, link = hardware.num_gpus, hardware.gpu.link_bytes_per_s
    num_reduces = ALL_REDUCES_PER_LAYER * shape.num_layers if num_gpus > 1 else 0
    moved_bytes = num_tokens * shape.config.hidden_size * _ACTIVATION_BYTES
    share = 2 * (num_gpus - 1) / num_gpus
    return Figure(
        "all_reduces_s",
        num_reduces * (ALL_REDUCE_LATENCY_S + share * moved_bytes / link),
        Unit.SECONDS,
        "all-reduces x (latency + 2 (n - 1) / n x activation bytes / link)",
        f"{num_reduces} * ({ALL_REDUCE_LATENCY_S:g}"
        f" + 2 * ({num_gpus} - 1) / {num_gpus} * {moved_bytes:g} / {link:g})",
    )


def ridge_flop_per_byte(gpu: Accelerator, precision: Precision) -> Figure:
    return Figure(
        "ridge_flop_per_byte",
        gpu.flop_per_s(precision) / gpu.bandwidth_bytes_per_s,
        Unit.FLOP_PER_BYTE,
        "peak operations per second / bandwidth",
        f"{gpu.flop_per_s(precision):g} / {gpu.bandwidth_bytes_per_s:g}",
    )


def compute_bound_batch(gpu: Accelerator, precision: Precision) -> Figure:
    """Each weight read serves one multiplication and addition per sequence in the batch."""
    ridge = gpu.flop_per_s(precision) / gpu.bandwidth_bytes_per_s
    size = precision.bytes_per_value
    return Figure(
        "compute_bound_batch",
        ridge * size / 2,
        Unit.COUNT,
        "operations per byte x bytes per weight / 2 operations per weight",
        f"{ridge:.6g} * {size:g} / 2",
    )


def tokens_per_s(step_s: float, num_sequences: float = 1) -> Figure:
    return Figure(
        "decode_tokens_per_s",
        num_sequences / step_s,
        Unit.TOKENS_PER_S,
        "sequences / time per step",
        f"{num_sequences:g} / {step_s:.6g}",
    )


def _peak_flop(hardware: Hardware) -> str:
    peak = hardware.gpu.flop_per_s(hardware.precision)
    return f"{hardware.num_gpus} * {peak:g} * {hardware.compute_ratio:g}"
