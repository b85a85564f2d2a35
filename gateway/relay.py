"""One replica's answer to one client: open, relay, and stop.

Until the first byte has gone to the client another replica may be tried; after it the stream can
only go on or end with an error event.  The relay keeps the meter; it never settles.
"""

import asyncio
import re
from typing import Final

import msgspec

from contracts.errors import UNDECODABLE
from contracts.names import HEADER_EVENT_ID, HEADER_REQUEST_ID, HEADER_TENANT_ID
from contracts.replica_api import AbortedUsage
from contracts.usage import UsageSource
from gateway.api.context import RequestContext
from gateway.api.event_stream import DONE, EventSplitter, EventTooLarge, event_payload
from gateway.api.upstream_errors import error_in_event, refusal
from gateway.errors import NoReplicaAvailable, UpstreamError, UpstreamUnreachable
from gateway.exchange import Exchange
from gateway.fleet import Fleet
from gateway.metering import NOTHING_USED, Meter, Usage, reported_usage
from gateway.routing.replica import Replica
from gateway.routing.stay import Stay
from gateway.upstream.replica_client import read_body
from gateway.upstream.response import UpstreamResponse

FORWARDED_HEADERS: Final = frozenset({b"accept", b"traceparent", b"tracestate"})
_REQUEST_HEADERS = (
    f"{HEADER_REQUEST_ID}: %b\r\n{HEADER_EVENT_ID}: %b\r\n{HEADER_TENANT_ID}: %b\r\n"
    "content-type: application/json\r\n"
).encode()
_GENERATED_TEXT = re.compile(
    rb'"(?:content|text|reasoning_content|reasoning|arguments)"\s*:\s*"[^"]'
)
_AT_ONCE_S = 5.0  # a replica that takes no work says so first; a later 503 may follow some
_UNHURRIED_ABORT_S = 30.0  # with the client gone only its reservation waits; a step may take long
_DRAIN_S = 0.1  # an answer that ended a moment before the abort is on its way already
_MAX_ERROR_BYTES = 64 * 1024
_ANSWER_BYTES_PER_TOKEN = 4  # of a document whose replica reports no usage


def _is_plain(chunk: bytes) -> bool:
    """Whole events, LF their line end, of which none can be one that must be looked at."""
    return (
        chunk.endswith(b"\n\n")
        and b'"usage"' not in chunk
        and b'"error"' not in chunk
        and DONE not in chunk
        and b"\r" not in chunk
    )


_EVENT_STREAM = b"text/event-stream"
_NULL = msgspec.Raw(b"null")


class _Chunk(msgspec.Struct):
    choices: list[msgspec.Raw] | None = None
    error: msgspec.Raw = _NULL  # "Raw | None" would accept nothing but null


_chunk_decoder = msgspec.json.Decoder(_Chunk)


class _Attempt(msgspec.Struct, frozen=True):
    replica: Replica
    request_id: str
    response: UpstreamResponse
    began_monotonic_s: float
    stay: Stay


class Relay:
    _is_answered = False
    _is_usage_final = False
    _retry_after_ms: int | None = None  # the least that a replica asked for

    def __init__(
        self, fleet: Fleet, exchange: Exchange, context: RequestContext, meter: Meter, head: bytes
    ) -> None:
        self._fleet = fleet
        self._exchange = exchange
        self._context = context
        self._meter = meter
        self._head = head  # header lines of the answer
        self._attempt: _Attempt | None = None
        self._splitter: EventSplitter | None = None  # None: not a stream, so far

    async def answer(self) -> bytes:
        """Relays all but the end, and returns that: ``[DONE]``, or the whole document.

        Raises UpstreamError, UpstreamRefused, NoReplicaAvailable, Interrupted.
        """
        response = await self._open()
        if response.status != 200:
            body = await read_body(response, _MAX_ERROR_BYTES, self._exchange.watch)
            raise refusal(response.status, body)
        if response.content_type.lower().startswith(_EVENT_STREAM):
            end = await self._relay_stream(response)
        else:
            max_bytes = self._fleet.limits.max_answer_bytes
            body = await read_body(response, max_bytes, self._exchange.watch)
            end = self._meter_document(body)
        self._is_answered = True
        return end

    def send_end(self, end: bytes) -> None:
        """What ``answer`` returned."""
        if self._splitter is None:
            self._exchange.send(200, self._head, end)
            return
        if not self._exchange.is_started:
            self._exchange.start_stream(self._head, b"")
        self._exchange.end_stream(end)

    @property
    def exchange(self) -> Exchange:
        return self._exchange

    def usage(self) -> Usage:
        """The best count so far: the replica's, or ours."""
        if self._is_answered and self._meter.engine_usage is not None:
            return self._meter.engine_usage
        attempt = self._attempt
        if attempt is None or not attempt.response.is_sent or attempt.response.is_refusal:
            return NOTHING_USED
        return self._meter.best_known(self._context.request.estimated_prompt_tokens)

    async def stop(self) -> Usage:
        """Ends the generation; the replica's final count if it can tell."""
        attempt = self._attempt
        if attempt is not None:
            response = attempt.response
            if response.is_sent and not response.is_refusal and not self._is_usage_final:
                await self._ask_final_usage(attempt)
            attempt.response.cancel()
        return self.usage()

    async def stop_after_failure(self) -> Usage:
        """As ``stop``; a replica that gave nothing and cannot be asked has used nothing."""
        usage = await self.stop()
        return usage if self._exchange.is_started or self._meter.engine_usage else NOTHING_USED

    def close(self) -> None:
        """Gives the connection back after a whole answer, and up after any other; idempotent."""
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            self._fleet.end(attempt.stay)
            if self._is_answered:
                attempt.response.discard()
            else:
                attempt.response.cancel()

    # Opening

    async def _open(self) -> UpstreamResponse:
        """The first answer with a head, from whichever replica gives one."""
        tried: set[str] = set()
        while True:
            self._exchange.raise_if_interrupted()  # nothing is sent for a client that left
            attempt = self._try_next(tried)
            try:
                await self._exchange.watch(attempt.response.head)
            except UpstreamUnreachable:
                self._fleet.pool.mark_unreachable(attempt.replica.name)
                attempt.response.cancel()
            else:
                if attempt.response.status != 503 or not self._is_turned_away(attempt):
                    self._exchange.body = b""  # megabytes, maybe, which no other replica needs now
                    return attempt.response
                self._note_retry_after(attempt.response)
                attempt.response.discard()
            tried.add(attempt.replica.name)
            self._fleet.end(attempt.stay)
            self._attempt = self._meter.replica = None

    def _try_next(self, tried: set[str]) -> _Attempt:
        request = self._context.request
        try:
            target_ms = self._context.grant.admission.ttft_target_ms
            replica = self._fleet.choose(request, tried, target_ms)
        except NoReplicaAvailable as error:
            if self._retry_after_ms is not None:
                error.retry_after_ms = self._retry_after_ms
            raise
        request_id = f"{self._context.request_id}-{len(tried)}"
        began_s = self._fleet.clock.monotonic_s()
        response = replica.client.post(
            request.operation.path.encode(), self._request_headers(request_id), self._exchange.body
        )
        stay = self._fleet.begin(replica, request, began_s, request_id)
        self._meter.replica, self._meter.attempt = replica.name, len(tried) + 1
        self._attempt = _Attempt(replica, request_id, response, began_s, stay)
        return self._attempt

    def _is_turned_away(self, attempt: _Attempt) -> bool:
        """With its 503: the replica is draining or full, and has done nothing."""
        return self._fleet.clock.monotonic_s() - attempt.began_monotonic_s < _AT_ONCE_S

    def _note_retry_after(self, response: UpstreamResponse) -> None:
        if response.retry_after_s is not None:
            asked_ms = response.retry_after_s * 1000
            least_ms = asked_ms if self._retry_after_ms is None else self._retry_after_ms
            self._retry_after_ms = min(asked_ms, least_ms)

    def _request_headers(self, request_id: str) -> bytes:
        """An allow-list: the client's key and cookies are none of the replica's business."""
        context = self._context
        account = context.event_id.encode(), context.grant.tenant.tenant_id.encode()
        lines = _REQUEST_HEADERS % (request_id.encode(), *account)
        for name, value in self._exchange.headers:
            if name in FORWARDED_HEADERS:
                lines += b"%b: %b\r\n" % (name, value)
        return lines

    # Relaying

    def _meter_document(self, body: bytes) -> bytes:
        meter = self._meter
        meter.is_document = True
        meter.engine_usage = reported_usage(body)
        meter.num_content_events = len(body) // _ANSWER_BYTES_PER_TOKEN
        meter.first_byte_monotonic_s = self._fleet.clock.monotonic_s()
        return body

    async def _relay_stream(self, response: UpstreamResponse) -> bytes:
        exchange = self._exchange
        self._splitter = splitter = EventSplitter(self._fleet.limits.max_event_bytes)
        while True:
            chunk = await exchange.watch(response.next_chunk())
            if splitter.is_between_events and _is_plain(chunk):
                self._count_texts(chunk)
                self._send(chunk)
            else:
                end = self._relay_events(splitter, chunk)
                if end is not None:
                    return end
            if exchange.is_write_paused:
                await exchange.wait_writable()

    def _relay_events(self, splitter: EventSplitter, chunk: bytes) -> bytes | None:
        """One by one, for one of them may not be for the client; the last, once it has come."""
        try:
            events = list(splitter.feed(chunk)) if chunk else [splitter.flush()]
        except EventTooLarge as exc:
            raise UpstreamError("The replica sent an event without end.") from exc
        visible: list[bytes] = []
        for event in events:
            payload = event_payload(event)
            if payload == DONE:
                self._send(b"".join(visible))
                return event
            if payload is None or self._is_for_client(payload, visible):
                visible.append(event)
        self._send(b"".join(visible))
        if not chunk:
            raise UpstreamError("The replica's stream ended before its end.")
        return None

    def _is_for_client(self, payload: bytes, before: list[bytes]) -> bool:
        """Reads what the meter needs.  Raises UpstreamRefused for an error event."""
        if b'"usage"' not in payload and b'"error"' not in payload:
            self._count_text(payload)
            return True
        try:
            chunk = _chunk_decoder.decode(payload)
        except UNDECODABLE:
            return True  # not ours to judge
        if bytes(chunk.error) != b"null":
            self._send(b"".join(before))
            raise error_in_event(payload)
        usage = reported_usage(payload)
        if usage is not None:
            self._meter.engine_usage = usage
        if chunk.choices:
            self._count_text(payload)
            return True
        self._is_usage_final = usage is not None
        return usage is None or self._context.request.wants_usage_chunk

    def _count_texts(self, events: bytes) -> None:
        if events.find(b"\n\n") == len(events) - 2:  # one, as a rule
            self._meter.num_content_events += _GENERATED_TEXT.search(events) is not None
        else:
            for event in events.split(b"\n\n"):
                self._count_text(event)

    def _count_text(self, payload: bytes) -> None:
        self._meter.num_content_events += _GENERATED_TEXT.search(payload) is not None

    def _send(self, events: bytes) -> None:
        if not events:
            return
        if self._exchange.is_started:
            self._exchange.write_stream(events)
        else:
            self._note_first_token()
            self._exchange.start_stream(self._head, events)

    def _note_first_token(self) -> None:
        now_s = self._fleet.clock.monotonic_s()
        self._meter.first_byte_monotonic_s = now_s
        if self._attempt is not None:
            self._fleet.first_token(self._attempt.stay, now_s)

    # Stopping

    async def _ask_final_usage(self, attempt: _Attempt) -> None:
        """Asks twice: the first abort may overtake the request that it is to end."""
        clock = self._fleet.clock
        timeout_s = self._fleet.limits.abort_timeout_s
        if self._exchange.disconnected:
            timeout_s = max(timeout_s, _UNHURRIED_ABORT_S)
        deadline_s = clock.monotonic_s() + timeout_s
        aborted = await self._abort(attempt, deadline_s)
        if aborted is None:
            await self._drain(attempt.response)
            if attempt.response.is_ended:
                return
            aborted = await self._abort(attempt, deadline_s)
        if aborted is None:
            return
        self._is_usage_final = True
        self._meter.engine_usage = Usage(
            aborted.prompt_tokens,
            min(aborted.cached_prompt_tokens, aborted.prompt_tokens),
            aborted.completion_tokens,
            UsageSource.ENGINE,
        )

    async def _abort(self, attempt: _Attempt, deadline_s: float) -> AbortedUsage | None:
        timeout_s = deadline_s - self._fleet.clock.monotonic_s()
        if timeout_s <= 0:
            return None
        return await attempt.replica.client.abort(attempt.request_id, timeout_s)

    async def _drain(self, response: UpstreamResponse) -> None:
        """Looks for a usage report among what has arrived already, or arrives in a moment."""
        splitter = self._splitter or EventSplitter(self._fleet.limits.max_event_bytes)
        try:
            async with asyncio.timeout(_DRAIN_S):
                while chunk := await response.next_chunk():
                    for event in splitter.feed(chunk):
                        usage = reported_usage(event_payload(event) or b"")
                        self._meter.engine_usage = usage or self._meter.engine_usage
                document = splitter.flush()
                self._meter.engine_usage = reported_usage(document) or self._meter.engine_usage
        except (TimeoutError, UpstreamError, EventTooLarge):
            return
