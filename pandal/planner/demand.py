"""From what one replica does to how many are needed.

Little's law, L = lambda x W: J. D. C. Little, "A proof for the queuing formula", 1961.
"""

import math

from pandal.planner.figure import Figure, Unit


def answer_s(*, ttft_s: float, tpot_s: float, output_tokens: float) -> Figure:
    """What a client waits for a whole answer."""
    return Figure(
        "answer_s",
        ttft_s + max(0.0, output_tokens - 1) * tpot_s,
        Unit.SECONDS,
        "time to first token + (output tokens - 1) x time per output token",
        f"{ttft_s:.6g} + max(0, {output_tokens:g} - 1) * {tpot_s:.6g}",
    )


def mean_tpot_s(
    *, step_s: float, prefill_s: float, num_sequences: float, output_tokens: float
) -> Figure:
    """While one sequence makes its tokens, each of the others is replaced once: a prefill each."""
    return Figure(
        "tpot_s",
        step_s + max(0.0, num_sequences - 1) * prefill_s / output_tokens,
        Unit.SECONDS,
        "decode step + (sequences - 1) x prefill / output tokens",
        f"{step_s:.6g} + max(0, {num_sequences:.6g} - 1) * {prefill_s:.6g} / {output_tokens:g}",
    )


def replica_tokens_per_s(
    num_sequences: float, step_s: float, *, prefill_s: float = 0.0, output_tokens: float = 1.0
) -> Figure:
    """Each token costs its share of a step, and of its request's prefill."""
    return Figure(
        "output_tokens_per_s",
        1 / (step_s / num_sequences + prefill_s / output_tokens),
        Unit.TOKENS_PER_S,
        "1 / (decode step / sequences + prefill / output tokens)",
        f"1 / ({step_s:.6g} / {num_sequences:.6g} + {prefill_s:.6g} / {output_tokens:g})",
    )


def replica_requests_per_s(tokens_per_s: float, output_tokens: float) -> Figure:
    return Figure(
        "requests_per_s",
        tokens_per_s / output_tokens,
        Unit.REQUESTS_PER_S,
        "output tokens per second / output tokens per request",
        f"{tokens_per_s:.6g} / {output_tokens:g}",
    )


def little_requests_per_s(num_sequences: float, residence_s: float) -> Figure:
    return Figure(
        "requests_per_s_by_littles_law",
        num_sequences / residence_s,
        Unit.REQUESTS_PER_S,
        "requests inside / time each is inside",
        f"{num_sequences:g} / {residence_s:.6g}",
    )


def replicas(
    *, requests_per_s: float, headroom_ratio: float, requests_per_s_per_replica: float
) -> Figure:
    needed = requests_per_s * (1 + headroom_ratio) / requests_per_s_per_replica
    return Figure(
        "num_replicas",
        max(1, math.ceil(needed - 1e-9)),
        Unit.COUNT,
        "demand x (1 + headroom) / requests per second of a replica, rounded up",
        f"max(1, ceil({requests_per_s:g} * (1 + {headroom_ratio:g})"
        f" / {requests_per_s_per_replica:.6g}))",
    )


def requests_in_flight(requests_per_s: float, answer_s: float) -> Figure:
    """By Little's law, over the whole fleet."""
    return Figure(
        "requests_in_flight",
        requests_per_s * answer_s,
        Unit.COUNT,
        "requests per second x time for an answer",
        f"{requests_per_s:g} * {answer_s:.6g}",
    )


def gpus(num_replicas: int, gpus_per_replica: int) -> Figure:
    return Figure(
        "num_gpus",
        num_replicas * gpus_per_replica,
        Unit.COUNT,
        "replicas x GPUs per replica",
        f"{num_replicas} * {gpus_per_replica}",
    )
