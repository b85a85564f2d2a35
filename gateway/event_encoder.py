"""Usage events as bytes: what completed requests have in common is encoded once.

What comes out is, byte for byte, what encoding the event would give: see the tests.
"""

from datetime import UTC, datetime
from typing import Final, NamedTuple

import msgspec

from contracts.usage import Outcome, UsageEvent, encode_usage_event
from gateway.api.context import RequestContext
from gateway.metering import EventSource, Meter, Usage
from gateway.policies import Grant
from gateway.templates import template_of

_MAX_KINDS: Final = 10_000  # a kilobyte each
_MARK_AT: Final = datetime(1, 1, 1, tzinfo=UTC)
_MARKS: Final[dict[str, object]] = {  # by field, in the event's order: values that no event has
    "event_id": "\x01event",
    "request_id": "\x01request",
    "admitted_at": _MARK_AT.replace(microsecond=1),
    "occurred_at": _MARK_AT.replace(microsecond=2),
    "input_uncached_tokens": 9_100_000_000_000_000_001,
    "input_cache_read_tokens": 9_100_000_000_000_000_002,
    "output_text_tokens": 9_100_000_000_000_000_003,
    "reserved_tokens": 9_100_000_000_000_000_004,
    "ttft_ms": 9.1e-101,
    "gateway_seq": 9_100_000_000_000_000_005,
    "input_cache_write_tokens": 9_100_000_000_000_000_006,
    "output_reasoning_tokens": 9_100_000_000_000_000_007,
    "settled_tokens": 9_100_000_000_000_000_008,
    "tpot_ms": 9.2e-101,
}
_encode = msgspec.json.Encoder().encode

_Kind = tuple[object, ...]


class _Template(NamedTuple):
    grant: Grant  # kept, so that its id is its own
    event: bytes  # encoded, with holes for what differs


class EventEncoder:
    def __init__(self, source: EventSource) -> None:
        self._source = source
        self._kinds: dict[_Kind, _Template] = {}

    def encode(
        self, context: RequestContext, meter: Meter, usage: Usage, outcome: Outcome, seq: int
    ) -> bytes:
        request, first_byte_s = context.request, meter.first_byte_monotonic_s
        kind = (
            id(context.grant), request.model_requested, request.model, request.operation,
            request.is_stream, meter.replica, meter.provider, meter.attempt, usage.source,
            meter.is_locally_admitted, meter.adapter_of,
        )  # fmt: skip
        known = self._kinds.get(kind)
        if known is None or outcome is not Outcome.COMPLETED or meter.parent_event_id is not None:
            event = self._source.event(context, meter, usage, outcome, seq)
            return self._encode_anew(kind, event, context.grant)
        ttft = b"null"
        if first_byte_s is not None:
            ttft = _encode((first_byte_s - context.started_monotonic_s) * 1e3)
        cached, written = usage.cached_prompt_tokens, usage.cache_write_tokens
        return known.event % (
            context.event_id.encode(),
            context.request_id.encode(),
            _encode(context.admitted_at),
            _encode(datetime.fromtimestamp(self._source.clock.wall_s(), UTC)),
            usage.prompt_tokens - cached - written,
            cached,
            usage.completion_tokens - usage.reasoning_tokens,
            request.estimated_prompt_tokens + request.reserved_completion_tokens,
            ttft,
            seq,
            written,
            usage.reasoning_tokens,
            usage.prompt_tokens + usage.completion_tokens,
            b"null" if meter.is_document else _encode(self._source.tpot_ms(meter, usage)),
        )

    def _encode_anew(self, kind: _Kind, event: UsageEvent, grant: Grant) -> bytes:
        if event.outcome is Outcome.COMPLETED and event.parent_event_id is None:
            template = event_template(event)
            if template is not None:
                if len(self._kinds) >= _MAX_KINDS:
                    self._kinds.clear()
                self._kinds[kind] = _Template(grant, template)
        return encode_usage_event(event)


def event_template(event: UsageEvent) -> bytes | None:
    """``event``, encoded, with a hole for each of ``_MARKS``; ``None`` where it has one of them."""
    marked = encode_usage_event(msgspec.structs.replace(event, **_MARKS))
    return template_of(marked, [(mark, _hole(mark)) for mark in _MARKS.values()])


def _hole(mark: object) -> bytes:
    return b'"%b"' if isinstance(mark, str) else b"%d" if isinstance(mark, int) else b"%b"
