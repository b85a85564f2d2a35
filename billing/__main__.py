"""``python -m billing``: environment, ledger, source, and the loop until SIGTERM.

Exit status: 0 stopped, 2 set up wrongly, 1 the source has lost events or the ledger cannot be
opened.
"""

import asyncio
import logging
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, closing

from billing.alerts import AlertBook
from billing.consumer import Consumer, EventSource
from billing.current_prices import CurrentPrices
from billing.errors import BillingError, PriceBookInvalid, RequestInvalid
from billing.kafka_source import KafkaSource
from billing.kafka_wiring import client_arguments
from billing.ledger import Ledger, utc_now
from billing.settings import PREFIX, Settings, unread_variables
from billing.spool_source import SpoolSource
from billing.watches import BudgetWatch, CounterWatch, watch
from contracts.environment import BadSettings, read_settings
from contracts.logs import configure_logging, log_bad_settings

logger = logging.getLogger(__name__)


def main() -> int:
    try:
        settings = read_settings(Settings, PREFIX, unread_variables())
    except BadSettings as exc:
        log_bad_settings("billing", exc.faults)
        return 2
    configure_logging("billing", settings.log_level)
    # It reports each attempt at a broker that is gone, many a second; kafka_source tells the fact.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    try:
        asyncio.run(_run(settings))
    except (PriceBookInvalid, RequestInvalid) as exc:
        logger.critical("billing cannot start", extra={"error": str(exc)})
        return 2
    except BillingError as exc:
        logger.critical("billing stopped", extra={"error": str(exc)})
        return 1
    logger.info("stopped")
    return 0


async def _run(settings: Settings) -> None:
    stop = asyncio.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, stop.set)
    ledger = Ledger(settings.ledger_url.get_secret_value())
    try:
        prices = CurrentPrices(settings.price_book, ledger)
        source = _source(settings, ledger)
        consumer = Consumer(
            source=source, ledger=ledger, prices=prices, poll_interval_s=settings.poll_interval_s
        )
        logger.info("started")
        try:
            async with _watching(settings):
                await consumer.run(stop)
        finally:
            await source.close()
    finally:
        ledger.close()


@asynccontextmanager
async def _watching(settings: Settings) -> AsyncIterator[None]:
    """What looks after budgets, for as long as the block runs."""
    done = asyncio.Event()
    with ExitStack() as stack:
        watches = [asyncio.create_task(watch(step, done)) for step in _steps(settings, stack, done)]
        try:
            yield
        finally:
            done.set()
            await asyncio.gather(*watches)


def _steps(
    settings: Settings, stack: ExitStack, done: asyncio.Event
) -> Iterator[Callable[[], None]]:
    """What is watched; ``stack`` closes it."""
    ledger_url = settings.ledger_url.get_secret_value()
    if settings.terms is not None:
        book = stack.enter_context(closing(AlertBook(ledger_url, utc_now)))
        yield BudgetWatch(book, settings.terms, utc_now, done.is_set).step
    if settings.quota_url is not None and settings.policy_file is not None:
        quota_url = settings.quota_url.get_secret_value()
        yield CounterWatch(ledger_url, quota_url, settings.policy_file, utc_now).step


def _source(settings: Settings, ledger: Ledger) -> EventSource:
    if settings.kafka_bootstrap is not None:
        return KafkaSource(
            brokers={"bootstrap_servers": settings.kafka_bootstrap, **client_arguments(settings)},
            topic=settings.kafka_topic,
            group=settings.kafka_group,
            session_timeout_s=settings.kafka_session_timeout_s,
            stall_timeout_s=settings.kafka_stall_timeout_s,
            next_offset=ledger.next_offset,
        )
    assert settings.spool_dir is not None  # Settings has checked it
    return SpoolSource(settings.spool_dir, ledger.next_offset, keep_s=settings.spool_keep_s)


if __name__ == "__main__":
    sys.exit(main())
