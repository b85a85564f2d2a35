"""Refuse early, or take turns: whether a request may go to a replica now.

One whose class has a target for its first token goes at once where some replica is expected to meet
it.  Where none is, it is refused with the time after which one will, or waits its fair turn, if its
policy lets it and its turn can come in time.  Without a target, and without a forecast, nothing is
held back.

Whoever does not wait costs a plain call: no task, no future, no timer.  One timer serves all that
wait, and only while somebody does.
"""

import asyncio
import math
from collections.abc import Mapping
from typing import Any

from contracts.admission import ServiceClass
from gateway.admission.fair_queue import FairQueue, Share, Turn
from gateway.api.context import RequestContext
from gateway.clock import Clock
from gateway.completion import Completion
from gateway.errors import Overloaded
from gateway.exchange import Exchange
from gateway.fleet import Fleet
from gateway.metering import Meter

_LOOK_S = 0.02  # between two looks at who waits, beside those at every first token
_SLACK_RATIO = 0.25  # of the target: what batch leaves free for whoever may come
_LEAST_RETRY_S = 0.5


class _Ticket:
    """Who waits, and until when its wait is over."""

    __slots__ = ("called", "context", "meter")

    def __init__(self, context: RequestContext, meter: Meter) -> None:
        self.context = context
        self.meter = meter
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
        self._is_looking = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def queues(self) -> Mapping[str, FairQueue[Any]]:
        """By model."""
        return self._queues

    @property
    def num_waiting(self) -> int:
        return sum(map(len, self._queues.values()))

    def enter(self, context: RequestContext, meter: Meter) -> Waiting | None:
        """A turn to wait for, or ``None``: it goes at once.  Raises Overloaded."""
        policy = context.grant.admission
        if policy.ttft_target_ms is None:
            return None
        queue = self._queue(context.request.model)
        share = _share_of(context)
        num_tokens = context.request.estimated_tokens
        now_s = self._clock.monotonic_s()
        if not queue and self._has_room(context, is_in_slack=_is_batch(share)):
            queue.charge(share, num_tokens)
            meter.charged_tokens = num_tokens
            return None
        wait_s = self._expected_wait_s(queue, share, context)
        if wait_s * 1e3 > policy.max_queue_ms or policy.max_queue_ms == 0:
            raise _overloaded(wait_s)
        deadline_s = now_s + policy.max_queue_ms / 1e3
        prompt_tokens = context.request.estimated_prompt_tokens
        ticket = _Ticket(context, meter)
        turn = Turn(share, num_tokens, prompt_tokens, now_s, deadline_s, ticket)
        loser = queue.push(turn)
        if loser is turn:
            raise _overloaded(wait_s)
        if loser is not None:
            self._refuse(queue, loser)
        self._look_later()
        return turn

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
        if correction and context.grant.admission.ttft_target_ms is not None:
            self._queue(context.request.model).charge(_share_of(context), correction)
            meter.charged_tokens = num_tokens

    def look(self) -> None:
        """Lets go who may: a replica has made progress, or time has passed."""
        if self._is_looking:  # whoever goes may bring progress himself
            return
        self._is_looking = True
        try:
            for queue in list(self._queues.values()):
                self._serve(queue)
        finally:
            self._is_looking = False

    def _serve(self, queue: Queue) -> None:
        now_s = self._clock.monotonic_s()
        while (next_turn := queue.first(now_s)) is not None:
            ticket = next_turn.holder
            is_in_slack = queue.is_in_slack(next_turn, now_s)
            if not self._has_room(ticket.context, is_in_slack=is_in_slack):
                return
            queue.take(next_turn)
            ticket.meter.charged_tokens = next_turn.num_tokens
            ticket.called.resolve(None)  # it is on its way to a replica when this returns

    def _end_overdue(self) -> None:
        now_s = self._clock.monotonic_s()
        for queue in list(self._queues.values()):
            for turn in queue.overdue(now_s):
                queue.remove(turn)
                self._refuse(queue, turn)

    def _refuse(self, queue: Queue, turn: Waiting) -> None:
        """One that has left the queue, with the time that it would have to wait again."""
        ticket = turn.holder
        wait_s = self._expected_wait_s(queue, turn.share, ticket.context)
        ticket.called.fail(_overloaded(wait_s))

    def _has_room(self, context: RequestContext, *, is_in_slack: bool) -> bool:
        target_s = _target_s(context, is_in_slack=is_in_slack)
        return self._fleet.has_room(context.request, target_s)

    def _expected_wait_s(self, queue: Queue, share: Share, context: RequestContext) -> float:
        target_s = _target_s(context, is_in_slack=_is_batch(share))
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


def _share_of(context: RequestContext) -> Share:
    policy = context.grant.admission
    return Share(context.grant.tenant.tenant_id, policy.service_class, policy.weight)


def _is_batch(share: Share) -> bool:
    return share.service_class is ServiceClass.BATCH


def _target_s(context: RequestContext, *, is_in_slack: bool) -> float:
    target_ms = context.grant.admission.ttft_target_ms
    assert target_ms is not None, "without a target nobody waits"
    return target_ms / 1e3 * (_SLACK_RATIO if is_in_slack else 1.0)


def _overloaded(wait_s: float) -> Overloaded:
    return Overloaded(retry_after_ms=math.ceil(max(_LEAST_RETRY_S, wait_s) * 1e3))
