"""What a plan is asked for: a model on some GPUs, under a load, at a price."""

from dataclasses import dataclass

from pandal.planner.accelerator import Accelerator
from pandal.planner.cost import ApiPrice
from pandal.planner.model_shape import ModelShape
from pandal.planner.precision import Precision


@dataclass(frozen=True, slots=True)
class Serving:
    """How a replica is built."""

    shape: ModelShape
    gpu: Accelerator
    weight_precision: Precision
    kv_precision: Precision
    num_gpus: int | None  # per replica; None: the fewest that hold enough sequences
    max_batch: int  # sequences an engine is allowed to run together
    usable_ratio: float  # of the memory
    compute_ratio: float  # of the peaks, that an engine reaches
    bandwidth_ratio: float
    load_bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Load:
    prompt_tokens: float
    output_tokens: float
    requests_per_s: float | None  # None: no demand; what one replica does is told
    requests_per_day: float | None  # None: the rate, around the clock
    headroom_ratio: float
    max_tpot_s: float | None  # None: as many sequences as fit


@dataclass(frozen=True, slots=True)
class Prices:
    usd_per_gpu_hour: float | None
    api: ApiPrice | None


@dataclass(frozen=True, slots=True)
class Draft:
    acceptance_ratio: float
    num_tokens: int
    cost_ratio: float  # a draft's step over the model's


@dataclass(frozen=True, slots=True)
class MeasuredPoint:
    """What one replica did under a load, by a load generator's report."""

    num_sequences: float  # at work together, on average
    prompt_tokens: float
    output_tokens: float
    ttft_s: float
    tpot_s: float
    output_tokens_per_s: float


@dataclass(frozen=True, slots=True)
class Question:
    serving: Serving
    load: Load
    prices: Prices
    draft: Draft | None
    measured: MeasuredPoint | None  # in the place of the roofline's guesses
