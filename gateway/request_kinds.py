"""Requests that are alike: the log, the counters and the collector are told the same of them.

But for numbers and ids.  So what is the same is made once a kind, and counted once for all that
ended together.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from gateway.policies import Grant
from gateway.trace import Trace

_MAX_KINDS: Final = 10_000  # half a kilobyte each


class Kind:
    """Itself and no other: what is kept of its requests is kept by it."""

    __slots__ = ("grant",)

    def __init__(self, grant: Grant | None) -> None:
        self.grant = grant  # kept, so that its id is its own


class RequestKinds:
    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], Kind] = {}

    def of(self, traces: Iterable[Trace]) -> list[Kind]:
        return [self._kind_of(trace) for trace in traces]

    def _kind_of(self, trace: Trace) -> Kind:
        meter, request, grant = trace.meter, trace.request, trace.grant
        key = (
            id(grant), trace.operation, trace.status, trace.reason, trace.outcome,
            None if request is None else request.model, request is None or request.is_stream,
            meter.replica, meter.provider, meter.route, meter.home,
            meter.num_breaks, meter.is_broken_off, meter.served is None,
            trace.usage is None, meter.first_byte_monotonic_s is None,
        )  # fmt: skip
        kind = self._known.get(key)
        if kind is None:
            if len(self._known) >= _MAX_KINDS:
                self._known.clear()
            kind = self._known[key] = Kind(grant)
        return kind


class Alike:
    """Requests of one kind that ended together, and what is counted of them."""

    def __init__(self, kind: Kind, traces: Sequence[Trace]) -> None:
        self.kind = kind
        self.traces = traces
        self.usages = [trace.usage for trace in traces if trace.usage is not None]
        self.ttfts_s = [
            trace.meter.first_byte_monotonic_s - trace.started_monotonic_s
            for trace in traces
            if trace.meter.first_byte_monotonic_s is not None
        ]


def by_kind(traces: Sequence[Trace], kinds: Sequence[Kind]) -> list[Alike]:
    """``kinds``: each trace's."""
    found: dict[Kind, list[Trace]] = {}
    for trace, kind in zip(traces, kinds, strict=True):
        alike = found.get(kind)
        if alike is None:
            found[kind] = [trace]
        else:
            alike.append(trace)
    return [Alike(kind, alike) for kind, alike in found.items()]
