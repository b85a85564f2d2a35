"""What the command line asks for, checked before anything is sent."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Final

from pandal.bench.arrivals import ArrivalProcess, Bursts, Constant, Poisson
from pandal.bench.target import Target
from pandal.bench.tenants import Slo, Tenant
from pandal.bench.trace import Trace, read_trace
from pandal.bench.workload import Chat, Lengths, Rag, Single, Workload, Zipf
from pandal.errors import BadOption


class WorkloadKind(StrEnum):
    FIXED = "fixed"
    LOGNORMAL = "lognormal"
    CHAT = "chat"
    RAG = "rag"
    REASONING = "reasoning"
    TRACE = "trace"


class ArrivalKind(StrEnum):
    POISSON = "poisson"
    CONSTANT = "constant"
    BURSTS = "bursts"
    TRACE = "trace"


@dataclass(frozen=True, slots=True)
class SourceOptions:
    url: str | None
    api_key_file: Path | None
    tenants_file: Path | None
    default_slo: Slo


@dataclass(frozen=True, slots=True)
class WorkloadOptions:
    kind: WorkloadKind
    given: Mapping[str, float]  # over the workload's own defaults, by name
    trace: Path | None = None


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """Open loop by rate, or closed loop by concurrency."""

    arrivals: ArrivalKind
    rate_per_s: float | None
    concurrency: int | None
    burst_size: int
    duration_s: float  # of sending; infinite: until ``num_requests`` or the trace's end
    num_requests: int | None
    warmup_s: float
    seed: int


@dataclass(frozen=True, slots=True)
class ClientOptions:
    model: str
    is_exact_length: bool
    timeout_s: float
    max_connections: int
    longest_retry_wait_s: float  # zero: no Retry-After is obeyed


@dataclass(frozen=True, slots=True)
class Prices:
    """US dollars per million tokens."""

    input_usd: Decimal
    cached_input_usd: Decimal
    output_usd: Decimal


@dataclass(frozen=True, slots=True)
class BenchOptions:
    target: Target
    tenants: tuple[Tenant, ...]
    workload: WorkloadOptions
    load: LoadOptions
    client: ClientOptions
    prices: Prices | None


DEFAULTS: Final[Mapping[WorkloadKind, Mapping[str, float]]] = {
    WorkloadKind.FIXED: {"prompt_tokens": 256, "output_tokens": 128},
    WorkloadKind.LOGNORMAL: {"prompt_tokens": 256, "output_tokens": 128, "sigma": 0.8},
    WorkloadKind.CHAT: {
        "prompt_tokens": 48,
        "output_tokens": 96,
        "sigma": 0.4,
        "system_tokens": 512,
        "groups": 8,
        "turns": 4,
        "pause_s": 2.0,
        "zipf": 1.0,
    },
    WorkloadKind.RAG: {
        "prompt_tokens": 1024,
        "output_tokens": 96,
        "sigma": 0.4,
        "system_tokens": 128,
        "zipf": 1.0,
        "documents": 256,
        "documents_per_prompt": 4,
    },
    WorkloadKind.REASONING: {"prompt_tokens": 128, "output_tokens": 1024, "sigma": 0.6},
    WorkloadKind.TRACE: {"speed": 1.0},
}
_NOT_COUNTS: Final = {"sigma", "pause_s", "zipf", "speed"}
_MOST: Final = 1_000_000  # of anything that is planned, kept or sent: more does not fit a machine
_LONGEST_S: Final = 7 * 86_400


def parse_setting(text: str) -> tuple[str, float]:
    """``name=value``."""
    name, _, value = text.partition("=")
    try:
        return name.strip().replace("-", "_"), float(value)
    except ValueError as exc:
        raise BadOption(f"--set: expected NAME=NUMBER, got {text!r}") from exc


def workload_parameters(options: WorkloadOptions) -> dict[str, float]:
    """With the workload's defaults filled in.  Raises BadOption."""
    defaults = DEFAULTS[options.kind]
    for name, value in options.given.items():
        if name not in defaults:
            known = ", ".join(defaults)
            raise BadOption(f"--workload {options.kind} has no {name!r}; it has {known}")
        lowest = 0 if name in _NOT_COUNTS else 1
        is_whole = name in _NOT_COUNTS or value % 1 == 0
        if not (lowest <= value <= _MOST and is_whole):
            kind = "a number" if name in _NOT_COUNTS else "a whole number"
            raise BadOption(f"{name}: expected {kind} from {lowest} to {_MOST:,}, got {value:g}")
    return {**defaults, **options.given}


def build_workload(options: WorkloadOptions) -> Workload:
    """Raises BadOption."""
    if (options.trace is not None) != (options.kind is WorkloadKind.TRACE):
        raise BadOption("--trace FILE and --workload trace go together")
    parameters = workload_parameters(options)
    if options.trace is not None:
        return read_trace(options.trace)
    if options.kind is WorkloadKind.CHAT:
        return _chat(parameters)
    if options.kind is WorkloadKind.RAG:
        return _rag(parameters)
    return _single(str(options.kind), parameters)


def build_arrivals(
    load: LoadOptions, workload: Workload, parameters: Mapping[str, float]
) -> ArrivalProcess:
    """Of sessions: a session of four turns arrives a quarter as often as its requests."""
    if load.arrivals is ArrivalKind.TRACE:
        if not isinstance(workload, Trace):
            raise BadOption("--arrivals trace needs --workload trace")
        return workload.arrivals(parameters["speed"])
    assert load.rate_per_s is not None, "checked with the other options"
    rate_per_s = load.rate_per_s / workload.turns_per_conversation
    if load.arrivals is ArrivalKind.BURSTS:
        return Bursts(rate_per_s, load.burst_size)
    return Poisson(rate_per_s) if load.arrivals is ArrivalKind.POISSON else Constant(rate_per_s)


def check_client(client: ClientOptions) -> None:
    """Raises BadOption."""
    _check_within("--timeout-s", client.timeout_s, _LONGEST_S)
    _check_within("--max-connections", client.max_connections, _MOST)
    if not 0 <= client.longest_retry_wait_s <= _LONGEST_S:
        raise BadOption(
            f"--retry-after-s: expected 0 to {_LONGEST_S:,}, got {client.longest_retry_wait_s:g}"
        )


def check_load(load: LoadOptions) -> None:
    """Raises BadOption."""
    is_timed = load.arrivals is ArrivalKind.TRACE
    if [load.rate_per_s is not None, load.concurrency is not None, is_timed].count(True) != 1:
        raise BadOption("expected one of --rate, --concurrency and --arrivals trace")
    positive = {
        "--rate": load.rate_per_s,
        "--concurrency": load.concurrency,
        "--burst-size": load.burst_size,
        "--requests": load.num_requests,
    }
    for option, value in positive.items():
        if value is not None:
            _check_within(option, value, _MOST)
    if not load.duration_s > 0:
        raise BadOption(f"--duration-s: expected more than 0, got {load.duration_s}")
    if load.duration_s == math.inf and load.num_requests is None and not is_timed:
        raise BadOption("expected --duration-s or --requests")
    if not 0 <= load.warmup_s < load.duration_s:
        raise BadOption(f"--warmup-s: expected 0 to --duration-s, got {load.warmup_s}")
    _check_num_planned(load)


def _check_num_planned(load: LoadOptions) -> None:
    """An open loop is planned whole before it begins."""
    if load.rate_per_s is None or load.num_requests is not None:
        return
    num_planned = load.rate_per_s * load.duration_s
    if num_planned > _MOST:
        raise BadOption(
            f"--rate x --duration-s: expected at most {_MOST:,} requests, got {num_planned:.3g}"
        )


def _check_within(option: str, value: float, most: float) -> None:
    if not 0 < value <= most:  # also refuses nan
        raise BadOption(f"{option}: expected more than 0, at most {most:,}, got {value}")


def _single(name: str, parameters: Mapping[str, float]) -> Workload:
    sigma = parameters.get("sigma", 0.0)
    return Single(
        name, _lengths(parameters, "prompt", sigma), _lengths(parameters, "output", sigma)
    )


def _chat(parameters: Mapping[str, float]) -> Workload:
    sigma = parameters["sigma"]
    return Chat(
        groups=Zipf(int(parameters["groups"]), parameters["zipf"]),
        turns_per_conversation=int(parameters["turns"]),
        system_tokens=int(parameters["system_tokens"]),
        prompt=_lengths(parameters, "prompt", sigma),
        output=_lengths(parameters, "output", sigma),
        mean_pause_s=parameters["pause_s"],
    )


def _rag(parameters: Mapping[str, float]) -> Workload:
    per_prompt = int(parameters["documents_per_prompt"])
    return Rag(
        documents=Zipf(int(parameters["documents"]), parameters["zipf"]),
        documents_per_prompt=per_prompt,
        document_tokens=max(1, int(parameters["prompt_tokens"]) // per_prompt),
        system_tokens=int(parameters["system_tokens"]),
        output=_lengths(parameters, "output", parameters["sigma"]),
    )


def _lengths(parameters: Mapping[str, float], what: str, sigma: float) -> Lengths:
    return Lengths(int(parameters[f"{what}_tokens"]), sigma)
