"""A run: sessions start when they are meant to, or as earlier ones end, and become records.

Open loop: every session starts at its own moment, whatever has become of the others.  Closed loop:
so many sessions at a time.  Within a session the next turn waits for the answer, as a user does.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pandal.bench.answer import Answer, Outcome
from pandal.bench.client import Client
from pandal.bench.record import Refusal, RequestRecord, RetryOutcome, tpot_s
from pandal.bench.schedule import Arrival, RequestStyle, Session, body_of
from pandal.bench.tenants import Slo
from pandal.bench.workload import Turn

_RETRY_OUTCOMES = {
    Outcome.COMPLETED: RetryOutcome.ADMITTED,
    Outcome.REFUSED: RetryOutcome.REFUSED_AGAIN,
}


@dataclass(frozen=True, slots=True)
class Patience:
    timeout_s: float  # one attempt, from sending to the last byte
    longest_retry_wait_s: float  # a longer Retry-After is not obeyed; zero: none is
    # A search need not wait for a request that can no longer be good.  None of them is cut off
    # before this moment of the run, while others arrive: they must meet the load it makes.
    hopeless_end_at_s: float | None = None

    def timeout_at(self, now_s: float, intended_s: float, turn: Turn, slo: Slo) -> float:
        if self.hopeless_end_at_s is None:
            return self.timeout_s
        last_good_s = intended_s + slo.ttft_s + slo.tpot_s * turn.max_tokens
        return max(0.0, min(self.timeout_s, max(self.hopeless_end_at_s, last_good_s) - now_s))


@dataclass(frozen=True, slots=True)
class _Moment:
    intended_s: float
    send_lag_s: float


class Run:
    """Collects records; drive it with ``open_loop`` or ``closed_loop``, once."""

    def __init__(
        self,
        client: Client,
        heads: Mapping[str, bytes],  # by tenant
        style: RequestStyle,
        patience: Patience,
        clock_s: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._client = client
        self._heads = heads
        self._style = style
        self._patience = patience
        self._clock_s = clock_s
        self._started_s = clock_s()
        self.records: list[RequestRecord] = []
        self.num_sent = 0  # a refused one that asks again counts once

    @property
    def elapsed_s(self) -> float:
        return self._clock_s() - self._started_s

    def offset_s(self, reading_s: float) -> float:
        """Of a reading of the clock, from the start of the run."""
        return reading_s - self._started_s

    async def open_loop(self, arrivals: Sequence[Arrival]) -> None:
        self._started_s = self._clock_s()
        async with asyncio.TaskGroup() as group:
            for arrival in arrivals:
                await self._until(arrival.offset_s)
                group.create_task(self._session(arrival.session, arrival.offset_s))

    async def closed_loop(
        self, sessions: Iterator[Session], num_at_once: int, duration_s: float
    ) -> None:
        """No session starts after ``duration_s``."""
        self._started_s = self._clock_s()

        async def worker() -> None:
            while self.elapsed_s < duration_s:
                session = next(sessions, None)
                if session is None:
                    return
                await self._session(session, self.elapsed_s)

        async with asyncio.TaskGroup() as group:
            for _ in range(num_at_once):
                group.create_task(worker())

    async def _session(self, session: Session, intended_s: float) -> None:
        turns = session.conversation.turns
        for index, turn in enumerate(turns):
            if index > 0:
                intended_s = self.elapsed_s + turn.pause_s
                await self._until(intended_s)
            record = await self._turn(session, index, turn, intended_s)
            self.records.append(record)
            if not record.is_completed:
                return  # its user gives up

    async def _turn(
        self, session: Session, index: int, turn: Turn, intended_s: float
    ) -> RequestRecord:
        send_lag_s = self.elapsed_s - intended_s
        self.num_sent += 1
        head, body = self._heads[session.tenant.name], body_of(turn, self._style)

        async def ask() -> Answer:
            slo = session.tenant.slo
            timeout_s = self._patience.timeout_at(self.elapsed_s, intended_s, turn, slo)
            return await self._client.ask(head, body, timeout_s)

        answer, refusal = await ask(), None
        if answer.outcome is Outcome.REFUSED:
            answer, refusal = await self._obey(answer, ask)
        moment = _Moment(intended_s, send_lag_s)
        return self._record(session, index, moment, answer, refusal)

    async def _obey(
        self, answer: Answer, ask: Callable[[], Awaitable[Answer]]
    ) -> tuple[Answer, Refusal]:
        """Waits exactly as long as it was told, and asks once more."""
        wait_s = answer.retry_after_s
        if wait_s is None:
            return answer, Refusal(RetryOutcome.NOT_TOLD, None)
        longest_s = self._patience.longest_retry_wait_s
        if longest_s == 0 or wait_s > longest_s:
            return answer, Refusal(RetryOutcome.NOT_FOLLOWED, wait_s)
        assert answer.ended_s is not None
        await self._until(answer.ended_s - self._started_s + wait_s)
        again = await ask()
        retry = _RETRY_OUTCOMES.get(again.outcome, RetryOutcome.FAILED)
        return again, Refusal(retry, wait_s)

    def _record(
        self,
        session: Session,
        index: int,
        moment: _Moment,
        answer: Answer,
        refusal: Refusal | None,
    ) -> RequestRecord:
        zero_s = self._started_s + moment.intended_s
        assert answer.ended_s is not None
        first_s = answer.first_token_s
        num_left = len(session.conversation.turns) - index - 1
        return RequestRecord(
            tenant=session.tenant.name,
            session=session.number,
            turn=index,
            intended_s=moment.intended_s,
            send_lag_s=moment.send_lag_s,
            outcome=answer.outcome,
            status=answer.status,
            retry=None if refusal is None else refusal.retry,
            retry_after_s=None if refusal is None else refusal.retry_after_s,
            ttft_s=None if first_s is None else first_s - zero_s,
            tpot_s=tpot_s(answer),
            e2e_s=answer.ended_s - zero_s,
            usage=answer.usage,
            num_chunks=answer.num_chunks,
            gaps_s=answer.gaps_s,
            num_dropped_turns=0 if answer.outcome is Outcome.COMPLETED else num_left,
        )

    async def _until(self, offset_s: float) -> None:
        """Never early: a loop's timers may be, by a millisecond, and Retry-After is a promise."""
        while (wait_s := offset_s - self.elapsed_s) > 0:  # noqa: ASYNC110  # a moment, no event
            await asyncio.sleep(wait_s)
