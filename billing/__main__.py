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
from datetime import timedelta
from functools import partial
from typing import Any, Final

from billing.alert_topic import AlertTopic
from billing.alert_watches import BudgetWatch, ChannelWatch, Send, to_nobody, to_webhook
from billing.alerts import AlertBook, Channel
from billing.auditor import AuditReport
from billing.certainty import Sightings
from billing.consumer import Consumer, EventSource
from billing.current_prices import CurrentPrices
from billing.errors import BillingError, PriceBookInvalid, RequestInvalid
from billing.kafka_source import KafkaSource, lag_behind
from billing.kafka_wiring import client_arguments
from billing.lag import NO_LAG
from billing.ledger import Ledger, utc_now
from billing.lookup import next_offset
from billing.opening import done_or_stopped
from billing.quota_store import with_tls
from billing.reconciliation import AuditRules, Sources, policy_tenants, reconcile
from billing.settings import PREFIX, Settings, unread_variables
from billing.spool_source import SpoolSource
from billing.telemetry import Telemetry, Told
from billing.watches import CounterWatch, ReconciliationWatch, watch
from billing.whole_audits import WholeAudits
from contracts.environment import BadSettings, read_settings
from contracts.logs import configure_logging, log_bad_settings

logger = logging.getLogger(__name__)

_SETTLED_IN_S: Final = 60.0  # after a start much is on its way
_PATIENCE_S: Final = 10.0  # for accounts that move while they are compared


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
    except OSError as exc:
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
    told = Told(utc_now)
    async with _telling(settings, told):
        with told.opening():
            opened = await done_or_stopped(partial(_open, settings, told), stop)
        if opened is None:
            return
        logger.info("started")
        with closing(opened[0]):
            await _consume(settings, told, *opened, stop)


def _open(settings: Settings, told: Told) -> tuple[Ledger, CurrentPrices]:
    """May take long: the ledger is brought up to date, and what waited for a price is rated."""
    ledger = Ledger(settings.ledger_url.get_secret_value())
    try:
        return ledger, CurrentPrices(settings.price_book, ledger, told.note_progress)
    except BaseException:
        ledger.close()
        raise


async def _consume(
    settings: Settings, told: Told, ledger: Ledger, prices: CurrentPrices, stop: asyncio.Event
) -> None:
    source = _source(settings, ledger)
    consumer = Consumer(
        source=source,
        ledger=ledger,
        prices=prices,
        poll_interval_s=settings.poll_interval_s,
        progress=told,
    )
    try:
        async with _watching(settings, told):
            await consumer.run(stop)
    finally:
        await source.close()


@asynccontextmanager
async def _telling(settings: Settings, told: Told) -> AsyncIterator[None]:
    """From the first moment.  Raises OSError when the port is taken."""
    if settings.port is None:
        yield
        return
    async with Telemetry(told).served(settings.host, settings.port) as port:
        logger.info("listening", extra={"port": port})
        yield


@asynccontextmanager
async def _watching(settings: Settings, told: Told) -> AsyncIterator[None]:
    """What looks after budgets and books, for as long as the block runs."""
    done = asyncio.Event()
    with ExitStack() as stack:
        watches = [watch(step, done) for step in _steps(settings, stack, done)]
        interval_s = settings.reconcile_interval_s
        if interval_s > 0:
            books = ReconciliationWatch(
                _reconciliation(settings, done.is_set),
                told,
                has_quota_store=settings.quota_url is not None,
            )
            first_s = min(interval_s, _SETTLED_IN_S)
            watches.append(watch(books.step, done, first_s=first_s, interval_s=interval_s))
        tasks = [asyncio.create_task(each) for each in watches]
        try:
            yield
        finally:
            done.set()
            await asyncio.gather(*tasks)


def _steps(
    settings: Settings, stack: ExitStack, done: asyncio.Event
) -> Iterator[Callable[[], None]]:
    """What is looked at all the time; ``stack`` closes it."""
    ledger_url = settings.ledger_url.get_secret_value()
    if settings.terms is not None:
        book = stack.enter_context(closing(AlertBook(ledger_url, utc_now)))
        budgets, to_topic = BudgetWatch(book, settings.terms), _to_topic(settings)
        yield budgets.step
        for channel, receiver in (
            (Channel.WEBHOOK, lambda: to_webhook(budgets.terms, utc_now)),
            (Channel.TOPIC, lambda: to_topic),
        ):
            yield ChannelWatch(book, channel, receiver, done.is_set).step
    quota_url = _quota_url(settings)
    if quota_url is not None and settings.policy_file is not None:
        yield CounterWatch(ledger_url, quota_url, settings.policy_file, utc_now).step


def _quota_url(settings: Settings) -> str | None:
    url = settings.quota_url
    return None if url is None else with_tls(url.get_secret_value(), settings)


def _to_topic(settings: Settings) -> Send:
    if settings.alerts_topic is None:
        return to_nobody
    topic = AlertTopic(partial(_brokers, settings), settings.alerts_topic)
    return lambda alert: topic.send(alert.alert_id, alert.tenant_id, alert.document)


def _reconciliation(
    settings: Settings, is_stopping: Callable[[], bool]
) -> Callable[[], AuditReport]:
    ledger_url = settings.ledger_url.get_secret_value()
    sources = Sources(
        ledger_url=ledger_url,
        price_book=settings.price_book,
        spool_dir=settings.spool_dir,
        journals_dir=settings.usage_journals,
        quota_url=_quota_url(settings),
        policy_tenants=lambda: policy_tenants(settings.policy_file),
        lag=lambda: (
            NO_LAG
            if settings.kafka_bootstrap is None
            else lag_behind(
                _brokers(settings), settings.kafka_topic, partial(next_offset, ledger_url)
            )
        ),
    )
    rules = AuditRules(
        grace=timedelta(seconds=settings.reconcile_grace_s),
        patience_s=min(_PATIENCE_S, settings.reconcile_interval_s),
        span=timedelta(seconds=settings.reconcile_span_s),
        is_counted=False,
        recovers=True,
    )
    sightings, whole = Sightings(), WholeAudits(utc_now)

    def compare_by(rules: AuditRules) -> AuditReport:
        return reconcile(sources, rules, is_stopping, sightings)

    return lambda: whole.compare(rules, compare_by)


def _source(settings: Settings, ledger: Ledger) -> EventSource:
    if settings.kafka_bootstrap is not None:
        _brokers(settings)  # what is wrong with them from the start ends it
        return KafkaSource(
            brokers=partial(_brokers, settings),
            topic=settings.kafka_topic,
            group=settings.kafka_group,
            session_timeout_s=settings.kafka_session_timeout_s,
            stall_timeout_s=settings.kafka_stall_timeout_s,
            next_offset=ledger.next_offset,
        )
    assert settings.spool_dir is not None  # Settings has checked it
    return SpoolSource(settings.spool_dir, ledger.next_offset, keep_s=settings.spool_keep_s)


def _brokers(settings: Settings) -> dict[str, Any]:  # aiokafka has no types
    """Raises SourceUnavailable for certificates that cannot be read."""
    return {"bootstrap_servers": settings.kafka_bootstrap, **client_arguments(settings)}


if __name__ == "__main__":
    sys.exit(main())
