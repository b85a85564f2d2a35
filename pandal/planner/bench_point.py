"""A measured point out of a load generator's report (``pandal bench --json``).

Reads the few members it needs, of a run or of a search's best run.  It takes the run for one
replica at the load it is to carry: a report of ``--find-goodput`` says that, one of an idle
replica does not.
"""

from pathlib import Path

import msgspec

from contracts.errors import UNDECODABLE
from pandal.errors import BadOption
from pandal.planner.question import MeasuredPoint


class _Mean(msgspec.Struct, frozen=True):
    mean: float
    num: int


class _Latency(msgspec.Struct, frozen=True):
    ttft_s: _Mean | None
    tpot_s: _Mean | None
    e2e_s: _Mean | None


class _Throughput(msgspec.Struct, frozen=True):
    requests_per_s: float
    output_tokens_per_s: float


class _Tokens(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int


class _Section(msgspec.Struct, frozen=True):
    latency: _Latency
    throughput: _Throughput
    tokens: _Tokens


class _Run(msgspec.Struct, frozen=True, tag_field="type", tag="bench.report.v1"):
    total: _Section


class _Search(msgspec.Struct, frozen=True, tag_field="type", tag="bench.goodput.v1"):
    best: _Run | None


def read_point(path: Path) -> MeasuredPoint:
    """Raises BadOption."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=_Run | _Search)
    except OSError as exc:
        raise BadOption(f"--from-bench: {path}: {exc.strerror}") from exc
    except UNDECODABLE as exc:
        raise BadOption(f"--from-bench: {path}: no report of 'pandal bench': {exc}") from exc
    run = found.best if isinstance(found, _Search) else found
    if run is None:
        raise BadOption(f"--from-bench: {path}: a search that found no sustained rate")
    return _point(run.total, path)


def _point(total: _Section, path: Path) -> MeasuredPoint:
    ttft, tpot, e2e = total.latency.ttft_s, total.latency.tpot_s, total.latency.e2e_s
    if ttft is None or tpot is None or e2e is None or total.throughput.requests_per_s <= 0:
        raise BadOption(f"--from-bench: {path}: no streamed answer of two tokens or more in it")
    return MeasuredPoint(
        num_sequences=total.throughput.requests_per_s * e2e.mean,  # Little's law
        prompt_tokens=total.tokens.prompt_tokens / e2e.num,
        output_tokens=total.tokens.completion_tokens / e2e.num,
        ttft_s=ttft.mean,
        tpot_s=tpot.mean,
        output_tokens_per_s=total.throughput.output_tokens_per_s,
    )
