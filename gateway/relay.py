"""One replica's answer to one client: open, relay, and stop.

Until the first byte has gone to the client another replica may be tried.  After it a stream of one
of our own replicas goes on with another of them (``resilience.resumable_answer``); any other ends
with an error event.  The relay keeps the meter; it never settles.
"""

from contracts.errors import UNDECODABLE
from gateway.api.context import RequestContext
from gateway.api.event_stream import DONE, EventSplitter, event_payload
from gateway.api.plain_events import has_text, is_one_text, is_plain, num_with_text, plain_end
from gateway.api.stream_chunk import decode_chunk, whole_events
from gateway.api.upstream_errors import check_completion, error_in_event, refusal
from gateway.errors import GatewayError, NoReplicaAvailable, UpstreamError, UpstreamRefused
from gateway.exchange import Exchange
from gateway.fleet import Fleet
from gateway.metering import NOTHING_USED, Meter, Usage, of_provider, reported_usage
from gateway.providers.credential import Credential
from gateway.providers.foreign_stream import ForeignStream
from gateway.resilience.attempt import Attempt
from gateway.resilience.attempts import MAX_ERROR_BYTES, Attempts
from gateway.resilience.descent import Descent
from gateway.resilience.failures import is_replicas_end, may_fall_back
from gateway.resilience.final_count import FinalCount
from gateway.resilience.hedged_attempts import HedgedAttempts
from gateway.resilience.resumable_answer import ResumableAnswer
from gateway.resilience.resumption import resumed
from gateway.resilience.retries import Retries
from gateway.text_run import TextRun
from gateway.upstream.replica_client import read_body, whole_body
from gateway.upstream.response import Taker, UpstreamResponse

_UNHURRIED_ABORT_S = 30.0  # with the client gone only its reservation waits; a step may take long
_ANSWER_BYTES_PER_TOKEN = 4  # of a document whose replica reports no usage
_EVENT_STREAM = b"text/event-stream"
_DONE_EVENT = b"data: %b\n\n" % DONE


class Relay:
    _is_answered = False
    _is_flowing = False  # the client has some of what the current attempt streams
    _is_usage_final = False
    _descent: Descent | None = None  # None: its own replicas may yet serve it
    _splitter: EventSplitter | None = None  # None: not a stream, so far
    _foreign: ForeignStream | None = None  # None: of a replica of ours
    _run: TextRun | None = None  # None: not a stream, so far

    def __init__(
        self,
        fleet: Fleet,
        retries: Retries,
        exchange: Exchange,
        context: RequestContext,
        meter: Meter,
        head: bytes,
    ) -> None:
        self._fleet = fleet
        self._retries = retries
        self.exchange = exchange
        self._context = context
        self._meter = meter
        self._head = head  # header lines of the answer
        hedging = context.grant.tenant.hedging
        if hedging is None or not context.request.is_stream:
            self._attempts = Attempts(fleet, retries, exchange, context, meter)
        else:
            self._attempts = HedgedAttempts(hedging, fleet, retries, exchange, context, meter)

    @property
    def has_left_work(self) -> bool:
        """A replica that was given up may have begun, and keeps a record of it."""
        return self._attempts.has_left_work

    async def answer(self) -> bytes:
        """Relays all but the end, and returns that: ``[DONE]``, or the whole document.

        Raises UpstreamError, UpstreamRefused, NoReplicaAvailable, Interrupted.
        """
        budget = self._retries.budget
        if not budget.is_whole:
            budget.deposit()
        while True:
            try:
                end = await self._relay(await self._attempts.open())
                break
            except (UpstreamError, UpstreamRefused, NoReplicaAvailable) as failure:
                self._attempts.note_failure(failure)
                if self.exchange.is_started:
                    raise
                await self._before_next(failure)
        self._is_answered = True
        return end

    async def _before_next(self, failure: GatewayError) -> None:
        """Another attempt, or somebody else's turn.  Raises ``failure`` where there is neither."""
        self._is_usage_final = False
        try:
            await self._attempts.before_retry(failure)
        except (UpstreamError, UpstreamRefused, NoReplicaAvailable):
            if not may_fall_back(failure) or not await self.fall_back():
                raise

    async def fall_back(self) -> bool:
        """Turns to the next of the policy's chain; False: there is none, or no more."""
        descent = self._descent
        if descent is None:
            chain = self._retries.fallbacks.chain_of(self._context)
            if chain is None:
                return False
            self._descent = descent = Descent(
                self._retries.fallbacks, chain, self._context, self.exchange
            )
        target = await descent.next(self._fleet)
        if target is None:
            return False
        self._context = target.context
        self._meter.served = None if target.is_home else target
        self._head = descent.head(self._head, target)
        self._attempts.turn_to(target)
        return True

    def send_end(self, end: bytes) -> None:
        """What ``answer`` returned."""
        if self._splitter is None:
            self.exchange.send(200, self._head + self._meter.explanation, end)
            return
        if not self.exchange.is_started:
            self.exchange.start_stream(self._head + self._meter.explanation, b"")
        self.exchange.end_stream(end)

    def usage(self) -> Usage:
        """The best count so far: the replica's, or ours."""
        if self._is_answered and self._meter.engine_usage is not None:
            return self._meter.engine_usage
        attempt, answer = self._attempts.current, self._attempts.answer
        if answer is not None:
            self._meter.num_content_events = answer.num_tokens
        estimate = self._context.request.estimated_prompt_tokens
        if attempt is None or not attempt.response.is_sent or attempt.response.is_refusal:
            is_begun = answer is not None and answer.num_tokens > 0
            return answer.told(estimate) if answer is not None and is_begun else NOTHING_USED
        if answer is not None and self._meter.engine_usage is None:
            return answer.told(estimate)
        return self._meter.best_known(self._context.request)

    async def stop(self) -> Usage:
        """Ends the generation; the replica's final count if it can tell."""
        attempt = self._attempts.current
        if attempt is not None:
            response = attempt.response
            if response.is_sent and not response.is_refusal and not self._is_usage_final:
                await self._ask_final_usage(attempt)
            attempt.response.cancel()
        return self.usage()

    async def stop_after_failure(self) -> Usage:
        """As ``stop``; a replica that gave nothing and cannot be asked has used nothing."""
        usage = await self.stop()
        is_used = self.exchange.is_started or self._meter.is_counted_by_ours
        return usage if is_used else NOTHING_USED

    def close(self) -> None:
        """Gives the connection back after a whole answer, and up after any other; idempotent."""
        self._attempts.close(is_complete=self._is_answered)

    # Relaying

    @property
    def _credential(self) -> Credential | None:
        """Of ours, that the current attempt shows to a provider."""
        attempt = self._attempts.current
        return None if attempt is None else attempt.credential

    def _reported(self, document: bytes) -> Usage | None:
        """Of the answer, of which the attempt may have made but a part."""
        usage = reported_usage(document)
        return usage if usage is None else self._whole(usage)

    def _whole(self, usage: Usage) -> Usage:
        """Of the answer, of which the current attempt reports but its part."""
        answer, attempt = self._attempts.answer, self._attempts.current
        if self._meter.provider is not None:
            most = None if attempt is None else attempt.most_prompt_tokens
            return of_provider(usage, self._context.request, most_prompt_tokens=most)
        return usage if answer is None else answer.whole(usage)

    async def _relay(self, response: UpstreamResponse) -> bytes:
        if response.status != 200:
            body = await read_body(response, MAX_ERROR_BYTES, self.exchange.watch)
            raise refusal(response.status, body, response.retry_after_s, self._credential)
        if response.content_type.lower().startswith(_EVENT_STREAM):
            return await self._relay_stream(response)
        self._splitter, meter = None, self._meter
        max_bytes = self._fleet.limits.max_answer_bytes
        if response.is_ended:  # as most are by the time their head is looked at
            body = whole_body(response, max_bytes)
        else:
            body = await read_body(response, max_bytes, self.exchange.watch)
        credential = self._credential
        if credential is not None:
            credential.check_untold(body)
            if self._attempts.translation is not None:
                body = self._attempts.translation.document(body)
        meter.is_document = True
        usage = reported_usage(body)
        if usage is not None and (meter.provider is not None or self._attempts.answer is not None):
            usage = self._whole(usage)
        if usage is None or credential is not None:
            check_completion(body, credential)
        meter.engine_usage = usage
        meter.num_content_events = len(body) // _ANSWER_BYTES_PER_TOKEN
        meter.first_byte_monotonic_s = self._fleet.clock.monotonic_s()
        return body

    async def _relay_stream(self, response: UpstreamResponse) -> bytes:
        """Goes on with another replica where one breaks off, if that can be."""
        while True:
            try:
                return await self._relay_from(response)
            except (UpstreamError, UpstreamRefused) as failure:
                if self._attempts.answer is None or not is_replicas_end(failure):
                    raise
                if self._is_usage_final:
                    return _DONE_EVENT  # all that was missing
                self._is_flowing = False
                response = await resumed(self._attempts, self._fleet, self.exchange, failure)

    async def _relay_from(self, response: UpstreamResponse) -> bytes:
        exchange, answer = self.exchange, self._attempts.answer
        translation, credential = self._attempts.translation, self._credential
        max_bytes = self._fleet.limits.max_event_bytes
        self._splitter = splitter = EventSplitter(max_bytes)
        self._foreign = None if credential is None else ForeignStream(credential, max_bytes)
        taker: Taker = self._take_plain if answer is None else self._take_token
        self._run = run = TextRun(exchange, otherwise=taker)
        try:
            while True:
                if splitter.rest or translation is not None:
                    awaited = response.next_chunk()
                else:
                    awaited = response.next_chunk(taker, run.take)
                chunk = await exchange.watch(awaited)
                if translation is not None and chunk:
                    chunk = translation.feed(chunk)
                    if not chunk:
                        continue
                if exchange.is_write_paused:
                    await exchange.wait_writable()
                if answer is not None:
                    end = self._relay_tokens(splitter, chunk, answer)
                else:
                    end = self._relay_plain(splitter, chunk)
                if end is not None:
                    return end
                if not chunk:
                    raise UpstreamError("The replica's stream ended before its end.")
        finally:
            self._meter.num_content_events += run.end()

    # Most chunks, without waking the flow

    def _take_plain(self, chunk: bytes) -> bool:
        """Whole events as they are.  Raises UpstreamError."""
        if self.exchange.is_write_paused or not is_plain(chunk):
            return False
        if self._is_flowing and self._foreign is None:
            self.exchange.write_stream(chunk)
            if self._run is not None:
                self._run.learn(chunk)
        else:
            self._send(chunk)
        self._meter.num_content_events += num_with_text(chunk)
        return True

    def _take_token(self, chunk: bytes) -> bool:
        """One event of a replica that tells tokens.  Raises UpstreamError."""
        answer = self._attempts.answer
        if answer is None or self.exchange.is_write_paused or not is_one_text(chunk):
            return False
        events = answer.take(chunk)
        if self._is_flowing and events:
            self.exchange.write_stream(events)
        else:
            self._send(events)
        return True

    def _relay_plain(self, splitter: EventSplitter, chunk: bytes) -> bytes | None:
        """As ``_relay_events``, what need not be looked at in one piece."""
        end = plain_end(chunk) if not splitter.rest else 0
        if end:
            self._meter.num_content_events += num_with_text(chunk[:end])
            self._send(chunk[:end])
            if end == len(chunk):
                return None
        return self._relay_events(splitter, chunk[end:])

    def _relay_tokens(
        self, splitter: EventSplitter, chunk: bytes, answer: ResumableAnswer
    ) -> bytes | None:
        """As ``_relay_events``, of a replica that tells tokens: what is sent is what is resumed."""
        visible: list[bytes] = []
        try:
            for event in whole_events(splitter, chunk):
                if is_one_text(event):
                    visible.append(answer.take(event))
                    continue
                payload = event_payload(event)
                if payload == DONE:
                    return event
                if payload is not None and self._is_for_client(payload, visible):
                    visible.append(self._shown(event, answer))
        finally:
            self._send(b"".join(visible))
        return None

    def _shown(self, event: bytes, answer: ResumableAnswer) -> bytes:
        usage = self._meter.engine_usage
        if self._is_usage_final and answer.is_recounted and usage is not None:
            return answer.usage_event(usage)
        return answer.take(event)

    def _relay_events(self, splitter: EventSplitter, chunk: bytes) -> bytes | None:
        """One by one, for one of them may not be for the client; the last, once it has come."""
        visible: list[bytes] = []
        for event in whole_events(splitter, chunk):
            payload = event_payload(event)
            if payload == DONE:
                self._send(b"".join(visible))
                if not self.exchange.is_started and not self._meter.is_counted_by_ours:
                    raise UpstreamError("The replica's stream is no completion.")
                return event
            if payload is None or self._is_for_client(payload, visible):
                visible.append(event)
        self._send(b"".join(visible))
        return None

    def _is_for_client(self, payload: bytes, before: list[bytes]) -> bool:
        """Reads what the meter needs.  Raises UpstreamRefused for an error event."""
        if b'"usage"' not in payload and b'"error"' not in payload:
            self._meter.num_content_events += has_text(payload)
            return True
        try:
            chunk = decode_chunk(payload)
        except UNDECODABLE:
            return True  # not ours to judge
        if bytes(chunk.error) != b"null":
            if self._attempts.answer is None:
                self._send(b"".join(before))
            raise error_in_event(payload, self._credential)
        usage = self._reported(payload)
        if usage is not None:
            self._meter.engine_usage = usage
        if chunk.choices:
            self._meter.num_content_events += has_text(payload)
            return True
        self._is_usage_final = usage is not None
        return usage is None or self._context.request.wants_usage_chunk

    def _send(self, events: bytes) -> None:
        if self._foreign is not None and events:
            events = self._foreign.passed(events)
        if not events:
            return
        if not self.exchange.is_started:
            self._note_first_token()
            self.exchange.start_stream(self._head + self._meter.explanation, events)
            if self._attempts.answer is None:
                self.exchange.body = b""  # megabytes, maybe, which no other replica needs now
            return
        if not self._is_flowing:
            self._note_first_token()
        self.exchange.write_stream(events)

    def _note_first_token(self) -> None:
        """Of the answer, or of an attempt that goes on with it."""
        self._is_flowing = True
        now_s = self._fleet.clock.monotonic_s()
        self._meter.first_token(now_s)
        attempt = self._attempts.current
        if attempt is not None:
            self._fleet.first_token(attempt.stay, now_s)

    # Stopping

    async def _ask_final_usage(self, attempt: Attempt) -> None:
        limits, answer = self._fleet.limits, self._attempts.answer
        timeout_s = limits.abort_timeout_s
        if self.exchange.disconnected:
            timeout_s = max(timeout_s, _UNHURRIED_ABORT_S)
        splitter = self._splitter or EventSplitter(limits.max_event_bytes)
        count = FinalCount(attempt, splitter, self._note_usage, self._fleet.clock)
        usage = await count.ask(timeout_s)
        if usage is not None:
            self._is_usage_final = True
            self._meter.engine_usage = usage if answer is None else answer.whole(usage)

    def _note_usage(self, document: bytes) -> None:
        usage = self._reported(document)
        if usage is not None:
            self._meter.engine_usage = usage
