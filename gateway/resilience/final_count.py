"""Ends a generation before its end, and asks its replica what it took."""

import asyncio
from collections.abc import Callable
from typing import Final

from contracts.replica_api import AbortedUsage
from contracts.usage import UsageSource
from gateway.api.event_stream import EventSplitter, EventTooLarge, event_payload
from gateway.clock import Clock
from gateway.errors import UpstreamError
from gateway.metering import Usage
from gateway.resilience.attempt import Attempt

_DRAIN_S: Final = 0.1  # an answer that ended a moment before the abort is on its way already


class FinalCount:
    """Of one attempt's part of an answer."""

    def __init__(
        self,
        attempt: Attempt,
        splitter: EventSplitter,
        note: Callable[[bytes], object],
        clock: Clock,
    ) -> None:
        """``splitter``: of its stream, with what came.  ``note``: takes what may report usage."""
        self._attempt = attempt
        self._splitter = splitter
        self._note = note
        self._clock = clock

    async def ask(self, timeout_s: float) -> Usage | None:
        """Asks twice: the first abort may overtake the request that it is to end.

        ``None``: it cannot tell, or has told already in its answer.
        """
        deadline_s = self._clock.monotonic_s() + timeout_s
        aborted = await self._abort(deadline_s)
        if aborted is None:
            await self._drain()
            if not self._attempt.response.is_ended:
                aborted = await self._abort(deadline_s)
        return None if aborted is None else _usage_of(aborted)

    async def _abort(self, deadline_s: float) -> AbortedUsage | None:
        timeout_s = deadline_s - self._clock.monotonic_s()
        attempt = self._attempt
        if timeout_s <= 0 or attempt.is_foreign:
            return None
        return await attempt.replica.client.abort(attempt.request_id, timeout_s)

    async def _drain(self) -> None:
        """Looks for a usage report among what has arrived already, or arrives in a moment."""
        try:
            async with asyncio.timeout(_DRAIN_S):
                while chunk := await self._attempt.response.next_chunk():
                    for event in self._splitter.feed(chunk):
                        self._note(event_payload(event) or b"")
                self._note(self._splitter.flush())
        except (TimeoutError, UpstreamError, EventTooLarge):
            return


def _usage_of(aborted: AbortedUsage) -> Usage:
    return Usage(
        aborted.prompt_tokens,
        min(aborted.cached_prompt_tokens, aborted.prompt_tokens),
        aborted.completion_tokens,
        UsageSource.ENGINE,
    )
