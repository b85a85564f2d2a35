"""Poll, rate, post, over and over: the loop that moves usage events into the ledger.

It remembers nothing that the ledger does not: killed anywhere, it goes on from the offsets there.
"""

import asyncio
import contextlib
import logging
from collections.abc import Sequence, Set
from typing import Protocol

from billing.current_prices import CurrentPrices
from billing.errors import BillingError, LedgerMigrated, OffsetConflict, SourceLost
from billing.ledger import Ledger, PostResult
from billing.posting import rate_batch
from billing.pricing import PriceBook
from billing.records import Batch

logger = logging.getLogger(__name__)

_LONGEST_PAUSE_S = 30.0
_MOST_DOUBLINGS = 64  # far past the longest pause, and 2.0 ** 1024 is an OverflowError


class EventSource(Protocol):
    """Hands out consecutive batches and goes where it is told; the ledger says what was read."""

    async def poll(self) -> Sequence[Batch]:
        """The next batches, in order per source; empty: nothing now.

        Moves on as if they were posted.  Raises SourceUnavailable or SourceLost.
        """
        ...

    async def seek(self, source_id: str, offset: int | None) -> None:
        """Read ``source_id`` from ``offset`` next; None: from its beginning.

        Raises SourceUnavailable; what is polled next then begins where the ledger stands.
        """
        ...

    async def close(self) -> None:
        """Returns within seconds, whatever state the other side is in."""
        ...


class Progress(Protocol):
    """Is told how it goes."""

    def note_posted(self, result: PostResult) -> None:
        """One batch."""
        ...

    def note_read(self) -> None:
        """The source was asked, and what it had has been posted."""
        ...

    def note_paused(self, fault: str) -> None:
        """Something was in the way; ``fault``: its kind."""
        ...


class Consumer:
    """Owns neither ``source`` nor ``ledger``: the caller closes them."""

    def __init__(
        self,
        *,
        source: EventSource,
        ledger: Ledger,
        prices: CurrentPrices,
        poll_interval_s: float,
        progress: Progress,
    ) -> None:
        self._source = source
        self._ledger = ledger
        self._prices = prices
        self._poll_interval_s = poll_interval_s
        self._progress = progress
        self._num_failures = 0
        self._told_unpriced: set[str] = set()

    async def run(self, stop: asyncio.Event) -> None:
        """Until ``stop`` is set; a transaction that has begun is finished.

        Raises SourceLost, LedgerMigrated.
        """
        while not stop.is_set():
            pause_s = await self._tick()
            if pause_s > 0:
                await _wait(stop, pause_s)

    async def _tick(self) -> float:
        """Seconds to pause.  Failures cost a pause, which doubles as long as they go on."""
        try:
            price_book = await asyncio.to_thread(self._prices.refresh)
            batches = await self._source.poll()
            await self._post_all(batches, price_book)
        except (SourceLost, LedgerMigrated):
            raise
        except BillingError as exc:
            logger.warning("billing paused", extra={"error": str(exc)})
            self._progress.note_paused(type(exc).__name__)
        except Exception as exc:
            logger.exception("billing failed")
            self._progress.note_paused(type(exc).__name__)
        else:
            self._progress.note_read()
            self._num_failures = 0
            return 0.0 if batches else self._poll_interval_s
        self._num_failures += 1
        return pause_after_failures_s(self._poll_interval_s, self._num_failures)

    async def _post_all(self, batches: Sequence[Batch], price_book: PriceBook) -> None:
        """All of them, or the source goes back to the first that was not posted."""
        num_done = 0
        try:
            for batch in batches:
                await self._post(batch, price_book)
                num_done += 1
        finally:
            for batch in batches[num_done:]:
                await self._source.seek(batch.source_id, batch.expected_offset)

    async def _post(self, batch: Batch, price_book: PriceBook) -> None:
        try:
            result = await asyncio.to_thread(
                lambda: self._ledger.post(rate_batch(batch, price_book))
            )
        except OffsetConflict as exc:
            logger.info("another consumer was first", extra={"source_id": batch.source_id})
            await self._source.seek(batch.source_id, exc.stored_offset)
            return
        self._progress.note_posted(result)
        self._tell_unpriced(result.unpriced_models)
        logger.info(
            "batch posted",
            extra={
                "source_id": batch.source_id,
                "next_offset": batch.next_offset,
                "num_events": result.num_events,
                "num_posted": result.num_posted,
                "num_repeated": result.num_repeated,
                "num_unpriced": result.num_unpriced,
                "num_dead": result.num_dead,
            },
        )

    def _tell_unpriced(self, models: Set[str]) -> None:
        """Once a model, for as long as the process lives."""
        for model in sorted(models - self._told_unpriced):
            logger.error("a model has no price: its events wait", extra={"model": model})
            self._told_unpriced.add(model)


def pause_after_failures_s(poll_interval_s: float, num_failures: int) -> float:
    """Doubles from the poll interval up to half a minute, and stays there for years."""
    doubled_s = poll_interval_s * 2.0 ** min(num_failures, _MOST_DOUBLINGS)
    return min(doubled_s, _LONGEST_PAUSE_S)


async def _wait(stop: asyncio.Event, pause_s: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(pause_s):
            await stop.wait()
