"""The whole plan: from a question to figures, section by section, and what to beware of."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pandal.planner import (
    cost,
    demand,
    disaggregation,
    memory,
    model_shape,
    roofline,
    speculation,
)
from pandal.planner.figure import Figure, label, renamed
from pandal.planner.precision import Precision
from pandal.planner.question import Draft, Load, MeasuredPoint, Question, Serving
from pandal.planner.replica_speed import (
    Speed,
    best_batch,
    compared,
    speed_as_measured,
    speed_by_theory,
)
from pandal.planner.roofline import Hardware
from pandal.planner.sizing import find_room, kv_bytes_of_token, weights

_FAR_OFF_RATIO = 1.5  # a measurement so far from theory is worth a look
_ALIKE_RATIO = 1.1  # of lengths, in which a measurement may differ from the load planned for


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    figures: tuple[Figure, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    question: Question
    gpus_per_replica: int
    max_sequences: int  # per replica, together
    num_replicas: int | None  # None: no demand was named
    sections: tuple[Section, ...]
    warnings: tuple[str, ...]

    @property
    def figures(self) -> dict[str, float]:
        """By name, each of which is one figure's own."""
        return {f.name: f.value for section in self.sections for f in section.figures}


def make_plan(question: Question) -> Plan:
    """Raises BadOption when the model does not fit the GPUs."""
    serving, load = question.serving, question.load
    room = find_room(serving, load)
    used = Hardware(
        serving.gpu,
        room.num_gpus,
        serving.weight_precision,
        compute_ratio=serving.compute_ratio,
        bandwidth_ratio=serving.bandwidth_ratio,
    )
    batch = best_batch(serving, load, used, min(int(room.max_sequences.value), serving.max_batch))
    theory = speed_by_theory(serving, load, used, batch)
    measured = None
    if question.measured is not None:
        measured = speed_as_measured(question.measured, load)
    speed = theory if measured is None else measured
    needed = _demand(load, speed, room.num_gpus)
    sections = (
        Section("model", _model(serving)),
        Section(f"memory of a replica: {room.num_gpus} x {serving.gpu.name}", room.figures),
        Section("bounds, at the peaks of the data sheet", _bounds(serving, load, room.num_gpus)),
        Section("a replica at work", speed.figures),
        Section("theory beside the measurement", _compared(question, used, measured)),
        Section("demand", needed),
        Section("speculation", () if question.draft is None else _speculation(question.draft)),
        Section("cost", tuple(_costs(question, speed, needed, room.num_gpus))),
        Section("separate prefill and decode", _transfers(serving, load)),
        Section("cold start", (_cold_start(serving),)),
    )
    return Plan(
        question=question,
        gpus_per_replica=room.num_gpus,
        max_sequences=batch,
        num_replicas=int(needed[0].value) if needed else None,
        sections=tuple(section for section in sections if section.figures),
        warnings=tuple(_warnings(question, used, speed, measured)),
    )


def _model(serving: Serving) -> tuple[Figure, ...]:
    shape = serving.shape
    per_token = model_shape.kv_cache(shape, serving.kv_precision)
    context = shape.config.max_position_embeddings
    whole = memory.kv_bytes(context, per_token.value, name="kv_bytes_of_whole_context")
    others = [
        renamed(memory.weight_bytes(shape.num_parameters, each), f"weight_bytes_in_{each}")
        for each in (Precision.BF16, Precision.FP8, Precision.INT4)
        if each != serving.weight_precision
    ]
    return (model_shape.parameters(shape), weights(serving), *others, per_token, whole)


def _bounds(serving: Serving, load: Load, num_gpus: int) -> tuple[Figure, ...]:
    peak = Hardware(serving.gpu, num_gpus, serving.weight_precision)
    shape, precision = serving.shape, serving.weight_precision
    flop = roofline.prefill_flop(shape.num_multiplied_parameters, load.prompt_tokens)
    attention = roofline.attention_flop(shape, load.prompt_tokens)
    alone = roofline.decode_step_s(
        read_bytes=memory.weight_bytes(shape.num_multiplied_parameters, precision).value,
        flop=2 * shape.num_multiplied_parameters,
        communication_s=0.0,
        hardware=peak,
    )
    return (
        flop,
        attention,
        renamed(roofline.prefill_s(flop.value + attention.value, peak), "prefill_s_at_peak"),
        renamed(alone, "decode_step_s_at_peak"),
        renamed(roofline.tokens_per_s(alone.value), "decode_tokens_per_s_at_peak"),
        roofline.ridge_flop_per_byte(serving.gpu, precision),
        roofline.compute_bound_batch(serving.gpu, precision),
    )


def _compared(question: Question, used: Hardware, measured: Speed | None) -> tuple[Figure, ...]:
    if measured is None:
        return ()
    serving, load = question.serving, question.load
    return compared(speed_by_theory(serving, load, used, measured.num_sequences), measured)


def _demand(load: Load, speed: Speed, num_gpus: int) -> tuple[Figure, ...]:
    """Replicas first."""
    if load.requests_per_s is None:
        return ()
    replicas = demand.replicas(
        requests_per_s=load.requests_per_s,
        headroom_ratio=load.headroom_ratio,
        requests_per_s_per_replica=speed.requests_per_s.value,
    )
    in_flight = demand.requests_in_flight(load.requests_per_s, speed.answer_s.value)
    return (replicas, demand.gpus(int(replicas.value), num_gpus), in_flight)


def _speculation(draft: Draft) -> tuple[Figure, ...]:
    per_pass = speculation.tokens_per_pass(draft.acceptance_ratio, draft.num_tokens)
    gain = speculation.speedup(
        per_pass.value, draft_tokens=draft.num_tokens, draft_cost_ratio=draft.cost_ratio
    )
    return (per_pass, gain)


def _costs(
    question: Question, speed: Speed, needed: Sequence[Figure], num_gpus: int
) -> Iterator[Figure]:
    load, usd_per_gpu_hour = question.load, question.prices.usd_per_gpu_hour
    hours = cost.gpu_hours_per_million_tokens(speed.output_tokens_per_s.value / num_gpus)
    yield hours
    if usd_per_gpu_hour is not None:
        yield cost.usd_per_million_tokens(hours.value, usd_per_gpu_hour)
    if load.requests_per_s is None:
        return
    per_day = cost.requests_per_day(load.requests_per_s, given=load.requests_per_day)
    yield per_day
    if usd_per_gpu_hour is not None:
        own = cost.usd_per_day(needed[1].value, usd_per_gpu_hour)
        yield own
        yield cost.usd_per_million_served(own.value, per_day.value, load.output_tokens)
    if question.prices.api is not None:
        yield cost.api_usd_per_day(
            question.prices.api,
            requests_per_day=per_day.value,
            prompt_tokens=load.prompt_tokens,
            output_tokens=load.output_tokens,
        )


def _cold_start(serving: Serving) -> Figure:
    return memory.load_s(weights(serving).value, serving.load_bytes_per_s)


def _transfers(serving: Serving, load: Load) -> tuple[Figure, ...]:
    each = disaggregation.transfer_bytes(load.prompt_tokens, kv_bytes_of_token(serving))
    if load.requests_per_s is None:
        return (each,)
    return (each, disaggregation.transfer_bytes_per_s(each.value, load.requests_per_s))


def _warnings(
    question: Question, used: Hardware, speed: Speed, measured: Speed | None
) -> Iterator[str]:
    load = question.load
    if load.max_tpot_s is not None and speed.tpot_s.value > load.max_tpot_s:
        yield "the time per output token asked for cannot be kept, not by one sequence alone"
    if question.measured is not None and not _is_alike(question.measured, load):
        yield "the measurement is of other lengths: its rates are taken over as they are"
    tokens = load.prompt_tokens + load.output_tokens
    if tokens > question.serving.shape.config.max_position_embeddings:
        yield f"{tokens:g} tokens are more than the model's context"
    for ratio in _compared(question, used, measured)[1::2]:
        if not 1 / _FAR_OFF_RATIO <= ratio.value <= _FAR_OFF_RATIO:
            yield f"{label(ratio)} is {ratio.value:.2f}: theory is far off here"


def _is_alike(point: MeasuredPoint, load: Load) -> bool:
    pairs = (
        (point.prompt_tokens, load.prompt_tokens),
        (point.output_tokens, load.output_tokens),
    )
    return all(1 / _ALIKE_RATIO <= a / b <= _ALIKE_RATIO for a, b in pairs)
