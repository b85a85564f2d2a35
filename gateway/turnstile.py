"""Refuse early, or take turns: whether a request may go to a replica now.

One whose class has a target for its first token goes at once where some replica, for which nobody
waits before it, is expected to meet it.  Where none is, it is refused with the time after which
one will, or waits its fair turn, if its policy lets it and its turn can come in time.  Without a
target, and without a forecast, nothing is held back.

Only requests whose policy has a target come here.  Whoever does not wait costs a plain call: no
task, no future, no timer.  One timer serves all that wait, and only while somebody does.
"""

import asyncio
import math
from collections.abc import Collection, Mapping
from typing import Any

from contracts.admission import ServiceClass
from gateway.admission.fair_queue import FairQueue, Lane, Turn
from gateway.admission.promised_turns import GRACE_S, PromiseBook, PromisedTurns
from gateway.admission.recent_refusals import RecentRefusal, RecentRefusals
from gateway.admission.share import Share
from gateway.api.context import RequestContext
from gateway.clock import Clock
from gateway.completion import Completion
from gateway.errors import Overloaded
from gateway.exchange import Exchange
from gateway.fleet import Fleet
from gateway.grants import Grant
from gateway.metering import Meter

_LOOK_S = 0.02  # between two looks at who waits, beside those at every first token
_SLACK_RATIO = 0.25  # of the target, for whom others may come: batch, and who had its share
_LEAST_RETRY_S = 0.5
# After a refusal, and until a replica gets on: who surely waits as long is not looked at.
_SHUT_S = 0.05


class _Ticket:
    """Who waits, and until when its wait is over."""

    __slots__ = ("called", "context", "meter", "turn")

    def __init__(self, context: RequestContext, meter: Meter, turn: int) -> None:
        self.context = context
        self.meter = meter
        self.turn = turn
        self.called: Completion[None] = Completion()


Queue = FairQueue[_Ticket]
Waiting = Turn[_Ticket]


class Turnstile:
    def __init__(self, fleet: Fleet, clock: Clock, *, max_waiting: int, ageing_s: float) -> None:
        self._fleet = fleet
        self._clock = clock
        self._max_waiting = max_waiting
        self._ageing_s = ageing_s
        self._queues: dict[str, Queue] = {}  # by model
        self._promises = PromiseBook()
        self._refusals = RecentRefusals()
        self._is_looking = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def queues(self) -> Mapping[str, FairQueue[Any]]:
        """By model."""
        return self._queues

    @property
    def num_waiting(self) -> int:
        return sum(map(len, self._queues.values()))

    def check(self, grant: Grant, body: bytes, turn: int) -> None:
        """Before anything else is known of it.  Raises Overloaded, if it surely would be refused.

        Who has waited as it was told is looked at.
        """
        now_s = self._clock.monotonic_s()
        refusal = self._refusals.find(grant, body, now_s)
        if refusal is not None:
            self._refuse_alike(refusal, turn, now_s)

    def _refuse_alike(self, refusal: RecentRefusal, turn: int, now_s: float) -> None:
        line = self._promises.line_of(refusal.model, refusal.grant.tenant.tenant_id)
        if not line.is_due(turn, now_s):
            raise _overloaded(line, turn, refusal.room_s - now_s, now_s)

    def enter(self, context: RequestContext, meter: Meter, turn: int) -> Waiting | None:
        """Its wait in the queue, or ``None``: it goes at once.  Raises Overloaded.

        ``turn``: the same number when the same is asked again, see ``verdict.turn_of``.
        """
        queue, ticket = self._queue(context.request.model), _Ticket(context, meter, turn)
        share, now_s = _share_of(context), self._clock.monotonic_s()
        queue.asks(share, now_s)
        asked_model = context.request.model_requested.encode()
        refusal = self._refusals.known(context.grant, asked_model, now_s)
        if refusal is not None:
            self._refuse_alike(refusal, turn, now_s)
        is_in_slack = queue.gets_slack(share, now_s)
        ahead = queue.ahead(share, now_s)
        if self._has_room(context, ahead, is_in_slack=is_in_slack):
            queue.charge(share, context.request.estimated_tokens, now_s)
            self._let_in(ticket, ahead, now_s)
            return None
        patience_s = self._patience_s(ticket, is_in_slack=is_in_slack)
        wait_s = self._expected_wait_s(queue, share, context)
        if wait_s > patience_s or patience_s == 0.0:
            self._note_refusal(context, queue, patience_s, is_in_slack=is_in_slack)
            raise _overloaded(self._line_of(context), turn, wait_s, now_s)
        waiting = _waiting(share, ticket, now_s, now_s + patience_s)
        loser = queue.push(waiting)
        if loser is waiting:
            raise self._overloaded(queue, ticket)
        if loser is not None:
            loser.holder.called.fail(self._overloaded(queue, loser.holder))
        self._look_later()
        return waiting

    async def wait(self, exchange: Exchange, turn: Waiting) -> None:
        """Until its turn.  Raises Overloaded, Interrupted; then it has left the queue."""
        try:
            await exchange.watch(turn.holder.called)
        finally:
            ticket = turn.holder
            ticket.meter.queued_s = self._clock.monotonic_s() - turn.entered_s
            self._queue(ticket.context.request.model).remove(turn)

    def settle(self, context: RequestContext, meter: Meter, num_tokens: int) -> None:
        """What it had in truth, in place of what it was charged: nothing, if it never went."""
        correction = num_tokens - meter.charged_tokens
        if correction:
            queue, now_s = self._queue(context.request.model), self._clock.monotonic_s()
            charged_s = now_s if meter.charged_monotonic_s is None else meter.charged_monotonic_s
            queue.correct(_share_of(context), correction, charged_s, now_s)
            meter.charged_tokens = num_tokens

    def look(self) -> None:
        """Lets go who may: a replica has made progress, or time has passed."""
        self._refusals.clear()
        if self._is_looking:  # whoever goes may bring progress himself
            return
        self._is_looking = True
        try:
            for queue in list(self._queues.values()):
                self._serve(queue)
        finally:
            self._is_looking = False

    def _serve(self, queue: Queue) -> None:
        now_s, passed = self._clock.monotonic_s(), set[Lane]()
        while (next_turn := queue.first(now_s, passed)) is not None:
            ticket = next_turn.holder
            is_in_slack = queue.is_in_slack(next_turn, now_s)
            if not self._has_room(ticket.context, passed, is_in_slack=is_in_slack):
                passed.add(next_turn.lane)
                continue
            queue.take(next_turn, now_s)
            self._let_in(ticket, passed, now_s)
            ticket.called.resolve(None)  # it is on its way to a replica when this returns

    def _end_overdue(self) -> None:
        now_s = self._clock.monotonic_s()
        for queue in list(self._queues.values()):
            for turn in queue.overdue(now_s):
                queue.remove(turn)
                turn.holder.called.fail(self._overloaded(queue, turn.holder))

    def _let_in(self, ticket: _Ticket, ahead: Collection[Lane], now_s: float) -> None:
        """One that has been charged all that it may need; beside whoever is ``ahead``."""
        self._line_of(ticket.context).let_in(ticket.turn, now_s)
        if ahead:
            ticket.meter.waited_for = self._fleet.waited_for(ahead)
        ticket.meter.charged_tokens = ticket.context.request.estimated_tokens
        ticket.meter.charged_monotonic_s = now_s

    def _overloaded(self, queue: Queue, ticket: _Ticket) -> Overloaded:
        """For one that is not in the queue, with the time when its turn will be."""
        share, now_s = _share_of(ticket.context), self._clock.monotonic_s()
        wait_s = self._expected_wait_s(queue, share, ticket.context)
        return _overloaded(self._line_of(ticket.context), ticket.turn, wait_s, now_s)

    def _note_refusal(
        self, context: RequestContext, queue: Queue, patience_s: float, *, is_in_slack: bool
    ) -> None:
        """If any prompt would be refused now, and nobody else may serve it.

        An alias may stand for several models.
        """
        grant, request = context.grant, context.request
        if grant.tenant.fallbacks or request.model_requested != request.model:
            return
        target_s = _target_s(context, is_in_slack=is_in_slack)
        tokens_before = queue.tokens_before(grant.tenant.tenant_id)
        wait_s = self._fleet.least_drain_s(request, target_s, tokens_before)
        if wait_s > patience_s:
            now_s = self._clock.monotonic_s()
            until_s = now_s + min(_SHUT_S, wait_s - patience_s)
            self._refusals.note(RecentRefusal(grant, request.model, until_s, now_s + wait_s))

    def _patience_s(self, ticket: _Ticket, *, is_in_slack: bool) -> float:
        """How long it may wait here.

        Who has waited as it was told may be a little early.  And who has had more than its share
        waits here for what it would else wait for at a replica, where others would be behind it.
        """
        policy = ticket.context.grant.admission
        patience_s = policy.max_queue_ms / 1e3
        if self._line_of(ticket.context).claim(ticket.turn, self._clock.monotonic_s()):
            patience_s = max(patience_s, GRACE_S)
        if not is_in_slack or policy.service_class is ServiceClass.BATCH:
            return patience_s
        return max(patience_s, _target_s(ticket.context, is_in_slack=False) * (1.0 - _SLACK_RATIO))

    def _line_of(self, context: RequestContext) -> PromisedTurns:
        return self._promises.line_of(context.request.model, context.grant.tenant.tenant_id)

    def _has_room(
        self, context: RequestContext, ahead: Collection[Lane], *, is_in_slack: bool
    ) -> bool:
        target_s = _target_s(context, is_in_slack=is_in_slack)
        has_room = self._fleet.has_slack if is_in_slack else self._fleet.has_room
        return has_room(context.request, target_s, ahead)

    def _expected_wait_s(self, queue: Queue, share: Share, context: RequestContext) -> float:
        is_in_slack = queue.gets_slack(share, self._clock.monotonic_s())
        target_s = _target_s(context, is_in_slack=is_in_slack)
        tokens_before = queue.tokens_before(share.tenant)
        return self._fleet.drain_s(context.request, target_s, tokens_before)

    def _queue(self, model: str) -> Queue:
        queue = self._queues.get(model)
        if queue is None:
            queue = FairQueue(max_waiting=self._max_waiting, ageing_s=self._ageing_s)
            self._queues[model] = queue
        return queue

    def _look_later(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_LOOK_S, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        try:
            self._end_overdue()  # here only: it looks at everybody
            self.look()
        finally:
            if any(self._queues.values()):
                self._look_later()


def _overloaded(line: PromisedTurns, turn: int, wait_s: float, now_s: float) -> Overloaded:
    """``wait_s``: until there may be room for one."""
    told_s = line.promise_s(turn, max(_LEAST_RETRY_S, wait_s), now_s)
    return Overloaded(retry_after_ms=math.ceil(told_s * 1e3))


def _share_of(context: RequestContext) -> Share:
    policy = context.grant.admission
    return Share(context.grant.tenant.tenant_id, policy.service_class, policy.weight)


def _waiting(share: Share, ticket: _Ticket, now_s: float, deadline_s: float) -> Waiting:
    request = ticket.context.request
    tokens, prompt_tokens = request.estimated_tokens, request.estimated_prompt_tokens
    return Turn(share, tokens, prompt_tokens, now_s, deadline_s, ticket, request.providers)


def _target_s(context: RequestContext, *, is_in_slack: bool) -> float:
    target_ms = context.grant.admission.ttft_target_ms
    assert target_ms is not None, "without a target nobody waits"
    return target_ms / 1e3 * (_SLACK_RATIO if is_in_slack else 1.0)
