"""What one replica does: by the roofline at a batch, or as somebody has measured it."""

from bisect import bisect_right
from dataclasses import dataclass

from pandal.planner import demand, memory, roofline
from pandal.planner.figure import Figure, Unit, renamed
from pandal.planner.question import Load, MeasuredPoint, Serving
from pandal.planner.roofline import Hardware
from pandal.planner.sizing import kv_bytes_of_token, kv_copies


@dataclass(frozen=True, slots=True)
class Speed:
    num_sequences: float  # at work together
    steps: tuple[Figure, ...]  # what it was derived from
    ttft_s: Figure
    tpot_s: Figure
    answer_s: Figure
    output_tokens_per_s: Figure
    requests_per_s: Figure
    little: Figure  # the same rate from another side

    @property
    def figures(self) -> tuple[Figure, ...]:
        rates = (self.output_tokens_per_s, self.requests_per_s, self.little)
        return (*self.steps, self.ttft_s, self.tpot_s, self.answer_s, *rates)


def speed_by_theory(serving: Serving, load: Load, used: Hardware, num_sequences: float) -> Speed:
    prompt_s = roofline.prefill_s(prefill_flop(serving, load), used)
    all_reduce, step = decode(serving, load, used, num_sequences)
    tpot = _tpot(step.value, prompt_s.value, num_sequences, load)
    return _speed(
        load,
        num_sequences,
        steps=(_sequences(num_sequences), prompt_s, all_reduce, step),
        ttft_s=_ttft(prompt_s.value, step.value),
        tpot_s=tpot,
        tokens_per_s=demand.replica_tokens_per_s(
            num_sequences,
            step.value,
            prefill_s=prompt_s.value,
            output_tokens=load.output_tokens,
        ),
    )


def speed_as_measured(point: MeasuredPoint, load: Load) -> Speed:
    return _speed(
        load,
        point.num_sequences,
        steps=(_measured("num_sequences", point.num_sequences, Unit.COUNT),),
        ttft_s=_measured("ttft_s", point.ttft_s, Unit.SECONDS),
        tpot_s=_measured("tpot_s", point.tpot_s, Unit.SECONDS),
        tokens_per_s=_measured("output_tokens_per_s", point.output_tokens_per_s, Unit.TOKENS_PER_S),
    )


def best_batch(serving: Serving, load: Load, used: Hardware, max_sequences: int) -> int:
    """The most that fit and keep the time per output token; 1 when not even that does."""
    if load.max_tpot_s is None:
        return max_sequences
    prompt_s = roofline.prefill_s(prefill_flop(serving, load), used).value

    def tpot_s(num_sequences: int) -> float:
        _, step = decode(serving, load, used, num_sequences)
        return _tpot(step.value, prompt_s, num_sequences, load).value

    return max(1, bisect_right(range(1, max_sequences + 1), load.max_tpot_s, key=tpot_s))


def prefill_flop(serving: Serving, load: Load) -> float:
    linear = roofline.prefill_flop(serving.shape.num_multiplied_parameters, load.prompt_tokens)
    return linear.value + roofline.attention_flop(serving.shape, load.prompt_tokens).value


def decode(
    serving: Serving, load: Load, used: Hardware, num_sequences: float
) -> tuple[Figure, Figure]:
    """(all-reduces, step) at the mean context: half of an answer is made already."""
    shape = serving.shape
    read = memory.weight_bytes(shape.num_read_parameters(num_sequences), serving.weight_precision)
    context_tokens = load.prompt_tokens + load.output_tokens / 2
    kv_bytes = kv_bytes_of_token(serving) * kv_copies(serving, used.num_gpus).value
    all_reduce = roofline.all_reduce_s(shape, num_tokens=num_sequences, hardware=used)
    step = roofline.decode_step_s(
        read_bytes=read.value + num_sequences * context_tokens * kv_bytes,
        flop=2 * shape.num_multiplied_parameters * num_sequences,
        communication_s=all_reduce.value,
        hardware=used,
    )
    return all_reduce, step


def _speed(
    load: Load,
    num_sequences: float,
    *,
    steps: tuple[Figure, ...],
    ttft_s: Figure,
    tpot_s: Figure,
    tokens_per_s: Figure,
) -> Speed:
    answer = demand.answer_s(
        ttft_s=ttft_s.value, tpot_s=tpot_s.value, output_tokens=load.output_tokens
    )
    return Speed(
        num_sequences=num_sequences,
        steps=steps,
        ttft_s=ttft_s,
        tpot_s=tpot_s,
        answer_s=answer,
        output_tokens_per_s=tokens_per_s,
        requests_per_s=demand.replica_requests_per_s(tokens_per_s.value, load.output_tokens),
        little=demand.little_requests_per_s(num_sequences, answer.value),
    )


def _tpot(step_s: float, prefill_s: float, num_sequences: float, load: Load) -> Figure:
    return demand.mean_tpot_s(
        step_s=step_s,
        prefill_s=prefill_s,
        num_sequences=num_sequences,
        output_tokens=load.output_tokens,
    )


def _ttft(prefill_s: float, step_s: float) -> Figure:
    return Figure(
        "ttft_s",
        prefill_s + step_s,
        Unit.SECONDS,
        "prefill + the step that was under way: nobody waits in a queue",
        f"{prefill_s:.6g} + {step_s:.6g}",
    )


def _sequences(num_sequences: float) -> Figure:
    return Figure(
        "num_sequences",
        num_sequences,
        Unit.COUNT,
        "the most that fit, within the engine's bound and the time per output token asked for",
        f"{num_sequences:g}",
    )


def _measured(name: str, value: float, unit: Unit) -> Figure:
    return Figure(name, value, unit, "measured", f"{value:.9g}")


def compared(theory: Speed, measured: Speed) -> tuple[Figure, ...]:
    """How far the roofline was off, at the batch that was measured."""
    pairs = (
        (theory.ttft_s, measured.ttft_s),
        (theory.tpot_s, measured.tpot_s),
        (theory.output_tokens_per_s, measured.output_tokens_per_s),
    )
    found = []
    for guess, fact in pairs:
        found.append(renamed(guess, f"{guess.name}_by_theory"))
        found.append(_ratio(guess, fact))
    return tuple(found)


def _ratio(guess: Figure, fact: Figure) -> Figure:
    return Figure(
        f"{guess.name}_measured_over_theory",
        fact.value / guess.value,
        Unit.RATIO,
        "measured / by theory",
        f"{fact.value:.9g} / {guess.value:.9g}",
    )
