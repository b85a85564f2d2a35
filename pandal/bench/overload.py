"""Did the server keep up with an open loop?  Pure.

A server that cannot carry what is offered lets requests gather, and each waits longer than the one
before.  Neither alone proves it: at the beginning of every run requests gather, until the first are
answered, and a busy moment makes some wait.  So both must be seen, each beyond what chance makes
of it: fewer answered than came after the first quarter of the sending, and later ones slower.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pandal.bench.answer import Outcome
from pandal.bench.record import RequestRecord
from pandal.bench.report import Server

_FEWEST = 20  # requests after the first quarter: of fewer nothing is told
_LEAST_SHORTFALL_RATIO = 0.05  # of what was offered
_LEAST_GROWTH_RATIO = 1.2  # of the median wait, from the middle third to the last
_SIGMAS = 3.0
_SHED_RATIO = 0.05  # of the requests, refused with the status that says so
_UNAVAILABLE = 503

Times = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _Flow:
    """After the first quarter of the sending: a run begins with nothing in flight."""

    offered_per_s: float
    answered_per_s: float
    num_offered: int
    shortfall: int  # offered and not answered
    in_flight_at_quarter: int
    in_flight_at_end: int
    num_in_vain: int  # whose users left before the end of the sending

    @property
    def is_behind(self) -> bool:
        """By more than two counts of requests in flight differ by chance."""
        by_chance = _SIGMAS * math.sqrt(self.in_flight_at_quarter + self.in_flight_at_end + 1)
        return self.shortfall > max(by_chance, _LEAST_SHORTFALL_RATIO * self.num_offered)


@dataclass(frozen=True, slots=True)
class _Growth:
    """Of what requests wait, from those of the middle third of the sending to those of the last."""

    name: str
    before_s: float
    after_s: float
    sigmas: float  # by which the later ones rank higher

    @property
    def is_certain(self) -> bool:
        is_large = self.after_s >= _LEAST_GROWTH_RATIO * self.before_s
        return is_large and self.sigmas >= _SIGMAS


def server_section(
    records: Sequence[RequestRecord], *, until_s: float = math.inf, untold: str | None = None
) -> Server:
    """Of measured requests meant for before ``until_s``, from when on the generator held them back.

    ``untold``: why nothing can be told of the server.
    """
    ranked = sorted(filter(_was_taken, records), key=lambda record: record.intended_s)
    judged = [record for record in ranked if record.intended_s < until_s]
    if len(judged) < 2:
        return _untold(untold or "too few requests")
    flow = _flow(judged)
    grown = [growth for growth in _growths(judged) if growth.is_certain]
    slower = [*map(_said_of_growth, grown), *_said_of_those_in_vain(flow)]
    reasons = _shed(records)
    if flow.is_behind and slower:
        reasons += [_said_of_flow(flow), *slower]
    if untold is None and not reasons:
        untold = _why_unknown(flow)
    return Server(
        is_overloaded=None if untold is not None else bool(reasons),
        reasons=reasons if untold is None else [untold],
        offered_requests_per_s=flow.offered_per_s,
        answered_requests_per_s=flow.answered_per_s,
        num_in_flight_at_quarter=flow.in_flight_at_quarter,
        num_in_flight_at_end=flow.in_flight_at_end,
    )


def _was_taken(record: RequestRecord) -> bool:
    """Neither refused, which is no backlog, nor failed: it was answered, or waited in vain."""
    return record.retry is None and record.outcome in (Outcome.COMPLETED, Outcome.TIMEOUT)


def _flow(judged: Sequence[RequestRecord]) -> _Flow:
    starts_s = np.asarray([record.intended_s for record in judged])
    ends_s = starts_s + np.asarray([record.e2e_s for record in judged])
    is_answered = np.asarray([record.is_completed for record in judged])
    end_s = float(starts_s[-1])
    first_s = float(starts_s[0])
    quarter_s = first_s + (end_s - first_s) / 4
    num_offered = int(np.count_nonzero(starts_s > quarter_s))
    in_window = (ends_s > quarter_s) & (ends_s <= end_s)
    num_answered = int(np.count_nonzero(in_window & is_answered))
    span_s = end_s - quarter_s
    return _Flow(
        offered_per_s=num_offered / span_s if span_s > 0 else 0.0,
        answered_per_s=num_answered / span_s if span_s > 0 else 0.0,
        num_offered=num_offered,
        shortfall=num_offered - num_answered,
        in_flight_at_quarter=_num_in_flight(starts_s, ends_s, quarter_s),
        in_flight_at_end=_num_in_flight(starts_s, ends_s, end_s),
        num_in_vain=int(np.count_nonzero(in_window & ~is_answered)),
    )


def _num_in_flight(starts_s: Times, ends_s: Times, at_s: float) -> int:
    return int(np.count_nonzero((starts_s <= at_s) & (ends_s > at_s)))


def _growths(judged: Sequence[RequestRecord]) -> list[_Growth]:
    """Of the first token where an engine queues, of the whole answer where it shares itself out."""
    third = len(judged) // 3
    middle, last = judged[third : 2 * third], judged[-third:]
    if not middle:
        return []
    ttfts = _growth("first tokens", _waits_s(middle, "ttft_s"), _waits_s(last, "ttft_s"))
    return [ttfts, _growth("answers", _waits_s(middle, "e2e_s"), _waits_s(last, "e2e_s"))]


def _waits_s(records: Sequence[RequestRecord], column: str) -> Times:
    """One that waited in vain has waited longer than any that was answered."""
    return np.asarray(
        [getattr(record, column) if record.is_completed else math.inf for record in records]
    )


def _growth(name: str, before_s: Times, after_s: Times) -> _Growth:
    """Mann and Whitney's test, "On a test of whether one of two random variables ...", 1947."""
    ordered = np.sort(before_s)
    below = np.searchsorted(ordered, after_s, "left") + np.searchsorted(ordered, after_s, "right")
    is_higher = float(below.mean()) / 2 / len(ordered)  # probability; ties count half
    sigma = math.sqrt((len(before_s) + len(after_s) + 1) / (12 * len(before_s) * len(after_s)))
    medians_s = float(np.median(before_s)), float(np.median(after_s))
    return _Growth(name, *medians_s, sigmas=(is_higher - 0.5) / sigma)


def _shed(records: Sequence[RequestRecord]) -> list[str]:
    num_shed = sum(
        record.outcome is Outcome.REFUSED and record.status == _UNAVAILABLE for record in records
    )
    if num_shed == 0 or num_shed < _SHED_RATIO * len(records):
        return []
    return [f"it refused {num_shed} of {len(records)} requests with status {_UNAVAILABLE}"]


def _why_unknown(flow: _Flow) -> str | None:
    if flow.num_offered < _FEWEST:
        return f"only {flow.num_offered} requests after the first quarter of the sending"
    if flow.is_behind:
        return "more came than were answered, but none waited longer: the run was too short"
    return None


def _said_of_flow(flow: _Flow) -> str:
    return (
        f"{flow.offered_per_s:.4g} requests/s were offered and {flow.answered_per_s:.4g} answered "
        f"after the first quarter of the sending, and {flow.in_flight_at_quarter} in flight became "
        f"{flow.in_flight_at_end}"
    )


def _said_of_growth(growth: _Growth) -> str:
    return (
        f"{growth.name} took {_seconds(growth.before_s)} in its middle third and "
        f"{_seconds(growth.after_s)} in its last"
    )


def _said_of_those_in_vain(flow: _Flow) -> list[str]:
    """Where users leave after a time, waits stop growing at it."""
    if flow.num_in_vain <= _LEAST_SHORTFALL_RATIO * flow.num_offered:
        return []
    return [f"{flow.num_in_vain} requests timed out meanwhile"]


def _seconds(median_s: float) -> str:
    return f"{median_s:.3g} s" if math.isfinite(median_s) else "longer than the run waits"


def _untold(why: str) -> Server:
    return Server(
        is_overloaded=None,
        reasons=[why],
        offered_requests_per_s=None,
        answered_requests_per_s=None,
        num_in_flight_at_quarter=None,
        num_in_flight_at_end=None,
    )
