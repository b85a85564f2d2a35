"""From what a request consumed to the event that bills it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final, Protocol

import msgspec

from contracts.errors import UNDECODABLE
from contracts.usage import Outcome, UsageEvent, UsageSource
from gateway.api.context import InferenceRequest, RequestContext
from gateway.clock import Clock


class Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    cached_prompt_tokens: int  # subset of prompt_tokens
    completion_tokens: int
    source: UsageSource
    reasoning_tokens: int = 0  # subset of completion_tokens
    cache_write_tokens: int = 0  # subset of prompt_tokens, disjoint from the cached ones

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


def of_provider(
    reported: Usage, request: InferenceRequest, *, most_prompt_tokens: int | None
) -> Usage:
    """As far as it was asked for: whoever reports more has made something else, or nothing.

    ``most_prompt_tokens`` None: nobody but the provider can know.
    """
    most_tokens, prompt_tokens = request.max_completion_tokens, reported.prompt_tokens
    if most_prompt_tokens is not None:
        prompt_tokens = min(prompt_tokens, most_prompt_tokens)
    cached = min(reported.cached_prompt_tokens, prompt_tokens)
    bounded = Usage(
        prompt_tokens,
        cached,
        min(reported.completion_tokens, most_tokens),
        UsageSource.PROVIDER,
        min(reported.reasoning_tokens, most_tokens),
        min(reported.cache_write_tokens, prompt_tokens - cached),
    )
    if bounded.total_tokens < reported.total_tokens:
        return msgspec.structs.replace(bounded, source=UsageSource.PARTIAL)
    return bounded


NOTHING_USED = Usage(0, 0, 0, UsageSource.ENGINE)


class Priced(Protocol):
    """Knows what tokens cost."""

    def nano_usd(self, *, uncached: int, cached: int, output: int) -> int: ...


class Served(Protocol):
    """Who served a request in the place of its own replicas."""

    @property
    def context(self) -> RequestContext: ...

    @property
    def plan(self) -> Priced: ...


class Meter(msgspec.Struct, eq=False):
    """What is known so far about one answer.  Zero is a count, ``None`` is "unknown"."""

    charged_tokens: int = 0  # to its tenant's turns; none until it goes
    charged_monotonic_s: float | None = None
    is_locally_admitted: bool = False  # the quota store was away

    replica: str | None = None
    adapter_of: str | None = None  # whose adapter it serves, as it says
    provider: str | None = None  # None: a replica of ours
    attempt: int = 1  # which one this is
    route: str | None = None  # why it is there, as of its last attempt
    home: str | None = None  # where its prefix lives
    explanation: bytes = b""  # the header line that says so, for a client that asked
    route_costs: str | None = None  # of the candidates, where it was asked for
    engine_usage: Usage | None = None  # the last usage the replica reported
    num_content_events: int = 0  # relayed events that carried generated text, once it has ended
    waited_for: frozenset[str] = frozenset()  # by those whom it was let in beside: not for it
    queued_s: float | None = None  # for its turn; None: it did not wait
    sent_monotonic_s: float | None = None  # to the last who got it
    first_byte_monotonic_s: float | None = None
    is_document: bool = False  # not a stream: its first byte comes with its last
    served: Served | None = None  # by whom, if not as it was asked for
    parent_event_id: str | None = None  # of whose answer it is read
    # Replicas that broke its stream off, and another went on with it or tried to.
    num_breaks: int = 0
    is_broken_off: bool = False  # the last one broke it off for good
    broken_monotonic_s: float | None = None  # since when the client waits for it to go on
    recoveries_s: Sequence[float] = ()  # from each break to the first event behind it

    @property
    def is_counted_by_ours(self) -> bool:
        """A replica of ours has told what it used: one that says zero is trusted."""
        return self.engine_usage is not None and self.provider is None

    def first_token(self, now_monotonic_s: float) -> None:
        """Of the answer, or behind a break."""
        if self.first_byte_monotonic_s is None:
            self.first_byte_monotonic_s = now_monotonic_s
        if self.broken_monotonic_s is not None:
            self.recoveries_s = (*self.recoveries_s, now_monotonic_s - self.broken_monotonic_s)
            self.broken_monotonic_s = None

    def turn(self) -> None:
        """Somebody else gets the request, as if nobody had had it; the client has nothing of it."""
        self.provider = self.route = self.home = self.engine_usage = None
        self.explanation, self.route_costs = b"", None
        self.adapter_of = None

    def take_over(self, other: "Meter") -> None:
        """To whom it was sent, and why there."""
        self.replica, self.provider, self.attempt = other.replica, other.provider, other.attempt
        self.route, self.home, self.adapter_of = other.route, other.home, other.adapter_of
        self.explanation, self.route_costs = other.explanation, other.route_costs
        self.sent_monotonic_s = other.sent_monotonic_s

    def break_off(self, now_monotonic_s: float) -> None:
        self.num_breaks += 1
        self.broken_monotonic_s = now_monotonic_s

    def best_known(self, request: InferenceRequest) -> Usage:
        """The replica's count, or ours: a token per content event, and the estimated prompt."""
        if self.engine_usage is not None:
            return self.engine_usage
        num_tokens = min(self.num_content_events, request.max_completion_tokens)
        return Usage(request.estimated_prompt_tokens, 0, num_tokens, UsageSource.COUNTED)


# Of one request: a hundred times the longest context.  More is a server's defect, which neither the
# quota's arithmetic nor the ledger shall meet.
_MAX_TOKENS: Final = 10**8
_Tokens = Annotated[int, msgspec.Meta(ge=0, le=_MAX_TOKENS)]


class _PromptDetails(msgspec.Struct):
    cached_tokens: _Tokens | None = None


class _CompletionDetails(msgspec.Struct):
    reasoning_tokens: _Tokens | None = None


class _ReportedUsage(msgspec.Struct):
    prompt_tokens: _Tokens
    completion_tokens: _Tokens = 0
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _CompletionDetails | None = None


class _UsageCarrier(msgspec.Struct):
    usage: _ReportedUsage | None = None


_SHORT_BYTES = 2_048  # as soon read from the beginning
_usage_decoder = msgspec.json.Decoder(_UsageCarrier)


def reported_usage(document: bytes) -> Usage | None:
    """The ``usage`` member of an OpenAI object, or ``None`` where there is no valid one."""
    try:
        if len(document) > _SHORT_BYTES:
            usage = _usage_at_end(document)
        else:
            usage = _usage_decoder.decode(document).usage
    except UNDECODABLE:
        return None
    if usage is None:
        return None
    cached = reasoning = 0  # classes are disjoint: more cached than prompt is not
    prompt, completion = usage.prompt_tokens_details, usage.completion_tokens_details
    if prompt is not None and prompt.cached_tokens is not None:
        cached = min(prompt.cached_tokens, usage.prompt_tokens)
    if completion is not None and completion.reasoning_tokens is not None:
        reasoning = min(completion.reasoning_tokens, usage.completion_tokens)
    return Usage(
        usage.prompt_tokens, cached, usage.completion_tokens, UsageSource.ENGINE, reasoning
    )


def _usage_of(document: bytes) -> _ReportedUsage | None:
    try:
        return _usage_decoder.decode(document).usage
    except UNDECODABLE:
        return None


def _usage_at_end(document: bytes) -> _ReportedUsage | None:
    """Reads from the last member of that name on, which is not inside a string: there its quotes
    would be escaped.  If it is no member of the whole object, there is a brace too many."""
    start = document.rfind(b'"usage"')
    usage = None if start < 0 else _usage_of(b"{" + document[start:])
    return _usage_of(document) if usage is None else usage


_WHOLE: Final = (Outcome.COMPLETED, Outcome.RESPONSE_CACHE_HIT)


@dataclass(frozen=True, slots=True)
class EventSource:
    """Who writes the events: constant for the life of a process."""

    gateway_id: str
    boot_id: str
    clock: Clock

    def event(
        self, context: RequestContext, meter: Meter, usage: Usage, outcome: Outcome, seq: int
    ) -> UsageEvent:
        first_byte, request = meter.first_byte_monotonic_s, context.request
        grant, tenant = context.grant, context.grant.tenant
        return UsageEvent(
            event_id=context.event_id,
            request_id=context.request_id,
            tenant_id=tenant.tenant_id,
            key_id=grant.key.key_id,
            tier=tenant.tier,
            model_requested=request.model_requested,
            model=request.model,
            replica=meter.replica,
            endpoint=request.operation,
            is_stream=request.is_stream,
            admitted_at=context.admitted_at,
            occurred_at=self.clock.now(),
            outcome=outcome,
            usage_source=usage.source,
            input_uncached_tokens=(
                usage.prompt_tokens - usage.cached_prompt_tokens - usage.cache_write_tokens
            ),
            input_cache_read_tokens=usage.cached_prompt_tokens,
            output_text_tokens=usage.completion_tokens - usage.reasoning_tokens,
            reserved_tokens=request.estimated_tokens,
            ttft_ms=(
                None if first_byte is None else (first_byte - context.started_monotonic_s) * 1e3
            ),
            gateway_id=self.gateway_id,
            gateway_boot_id=self.boot_id,
            gateway_seq=seq,
            input_cache_write_tokens=usage.cache_write_tokens,
            output_reasoning_tokens=usage.reasoning_tokens,
            settled_tokens=usage.total_tokens,
            delivered_tokens=(
                None
                if outcome in _WHOLE
                else min(meter.num_content_events, usage.completion_tokens)
            ),
            output_charge=tenant.output_charge,
            tpot_ms=self.tpot_ms(meter, usage),
            priority=grant.admission.priority,
            provider=meter.provider,
            attempt=meter.attempt,
            is_locally_admitted=meter.is_locally_admitted,
            adapter=None if meter.adapter_of is None else request.model,
            parent_event_id=meter.parent_event_id,
            adapter_of=meter.adapter_of,
        )

    def tpot_ms(self, meter: Meter, usage: Usage) -> float | None:
        """Until now; a document comes at once, and has none."""
        first_byte = meter.first_byte_monotonic_s
        if first_byte is None or usage.completion_tokens < 2 or meter.is_document:
            return None
        return (self.clock.monotonic_s() - first_byte) * 1e3 / (usage.completion_tokens - 1)
