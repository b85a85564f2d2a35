"""Events come out of Kafka once each, from where the ledger stands; a lost broker is noticed."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import RecordsToDelete
from pydantic import SecretStr

from billing.alert_topic import AlertTopic
from billing.errors import AlertTopicUnavailable, SourceLost, SourceUnavailable
from billing.kafka_source import KafkaSource, lag_behind
from billing.kafka_wiring import client_arguments
from billing.ledger import Ledger
from billing.lookup import totals
from billing.posting import rate_batch
from billing.records import Batch
from billing.settings import Settings
from contracts.usage import encode_usage_event
from pandal.doctor.finding import Level
from pandal.doctor.kafka import kafka_findings
from pandal.settings import CommandSettings
from tests.billing.kafka_topic import (
    administration,
    create_topic,
    new_name,
    new_topic,
    producing,
    send_events,
    send_raw,
)
from tests.billing.usage_events import BOOK, usage
from tests.support.kafka_brokers import Broker, SecuredListener
from tests.support.ports import free_port

PATIENCE_S = 60.0


@asynccontextmanager
async def reading(
    broker: Broker,
    topic: str,
    next_offset: Callable[[str], int | None],
    *,
    session_timeout_s: float | None = None,
    stall_timeout_s: float = 60,
    brokers: Mapping[str, Any] | None = None,
) -> AsyncIterator[KafkaSource]:
    source = KafkaSource(
        brokers=lambda: {"bootstrap_servers": broker.bootstrap} if brokers is None else brokers,
        topic=topic,
        group=f"group-{topic}",
        session_timeout_s=(
            max(2.0, broker.shortest_session_s) if session_timeout_s is None else session_timeout_s
        ),
        stall_timeout_s=stall_timeout_s,
        next_offset=next_offset,
    )
    try:
        yield source
    finally:
        await source.close()


def from_the_beginning(_source_id: str) -> None:
    return None


async def poll_until(
    source: KafkaSource, num_records: int, post: Callable[[Batch], object]
) -> list[Batch]:
    """Polls until ``num_records`` have come, handing each batch to ``post``."""
    batches: list[Batch] = []
    async with asyncio.timeout(PATIENCE_S):
        while sum(len(b.records) for b in batches) < num_records:
            for batch in await source.poll():
                post(batch)
                batches.append(batch)
    return batches


def posting(ledger: Ledger) -> Callable[[Batch], object]:
    return lambda batch: ledger.post(rate_batch(batch, BOOK))


async def test_duplicates_on_several_partitions_are_posted_once(
    broker: Broker, ledger: Ledger, ledger_url: str
) -> None:
    topic = await new_topic(broker.bootstrap, num_partitions=4)
    events = [usage(n % 950) for n in range(1_000)]
    await send_events(broker.bootstrap, topic, events, num_partitions=4)
    async with reading(broker, topic, ledger.next_offset) as source:
        await poll_until(source, 1_000, posting(ledger))
    assert totals(ledger_url, "acme").num_requests == 950
    assert [ledger.next_offset(f"kafka/{topic}/{n}") for n in range(4)] == [250] * 4


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_a_broker_that_asks_who_we_are_is_read_over_tls(
    apache: Broker, secured: SecuredListener, ledger: Ledger, mechanism: str
) -> None:
    topic = await new_topic(apache.bootstrap, num_partitions=1)
    await send_events(apache.bootstrap, topic, [usage(n) for n in range(3)], num_partitions=1)
    told: dict[str, Any] = {k.lower(): v for k, v in secured.variables("", mechanism).items()}
    settings = Settings(ledger_url=SecretStr("sqlite://"), **told)
    brokers = {"bootstrap_servers": secured.bootstrap, **client_arguments(settings)}
    async with reading(apache, topic, from_the_beginning, brokers=brokers) as source:
        batches = await poll_until(source, 3, posting(ledger))
    assert sum(len(batch.records) for batch in batches) == 3
    lag = await asyncio.to_thread(lag_behind, brokers, topic, from_the_beginning)
    assert lag.num_unread == 3
    wrong = {**brokers, "sasl_plain_password": "hunter2"}
    async with reading(apache, topic, from_the_beginning, brokers=wrong) as source:
        with pytest.raises(SourceUnavailable, match="Unable to bootstrap") as refused:
            await source.poll()
    assert "hunter2" not in str(refused.value)


async def test_the_doctor_looks_into_such_a_broker(
    apache: Broker, secured: SecuredListener
) -> None:
    topic = await new_topic(apache.bootstrap, num_partitions=2)
    told: dict[str, Any] = secured.variables("BILLING_")
    del told["BILLING_KAFKA_BOOTSTRAP"]  # a command's is another
    found = await asyncio.to_thread(
        kafka_findings, secured.bootstrap, CommandSettings(**told), topic
    )
    assert found[0].fact.startswith(f"{topic} has 2 partitions")
    told["BILLING_KAFKA_CA_FILE"] = None  # a stranger, then
    (refused,) = await asyncio.to_thread(
        kafka_findings, secured.bootstrap, CommandSettings(**told), topic
    )
    assert (refused.level, "cannot be reached" in refused.fact) == (Level.FAILURE, True)


async def test_a_broker_that_asks_for_our_certificate_gets_it_or_is_out_of_reach(
    apache: Broker, secured: SecuredListener
) -> None:
    told: dict[str, Any] = {k.lower(): v for k, v in secured.variables("").items()}
    for name in ("kafka_certificate_file", "kafka_certificate_key_file"):
        del told[name]
    settings = Settings(ledger_url=SecretStr("sqlite://"), **told)
    brokers = {"bootstrap_servers": secured.bootstrap, **client_arguments(settings)}
    async with reading(apache, "any", from_the_beginning, brokers=brokers) as source:
        with pytest.raises(SourceUnavailable, match="Unable to bootstrap"):
            await source.poll()


async def test_reading_goes_on_where_the_ledger_stands_not_where_kafka_says(
    broker: Broker, ledger: Ledger, ledger_url: str
) -> None:
    topic = await new_topic(broker.bootstrap, num_partitions=2)
    await send_events(broker.bootstrap, topic, [usage(n) for n in range(10)], num_partitions=2)
    short = broker.shortest_session_s  # who comes after another waits for its session's end
    async with reading(broker, topic, from_the_beginning, session_timeout_s=short) as source:
        await poll_until(source, 10, lambda _batch: None)  # read, never posted
    async with reading(broker, topic, ledger.next_offset, session_timeout_s=short) as source:
        await poll_until(source, 10, posting(ledger))
    await send_events(broker.bootstrap, topic, [usage(n) for n in range(10, 14)], num_partitions=2)
    async with reading(broker, topic, ledger.next_offset, session_timeout_s=short) as source:
        again = await poll_until(source, 4, posting(ledger))
    assert sum(len(b.records) for b in again) == 4
    assert totals(ledger_url, "acme").num_requests == 14


async def test_it_goes_back_where_it_is_told(broker: Broker) -> None:
    topic = await new_topic(broker.bootstrap, num_partitions=1)
    await send_events(broker.bootstrap, topic, [usage(n) for n in range(6)], num_partitions=1)
    async with reading(broker, topic, from_the_beginning) as source:
        await poll_until(source, 6, lambda _batch: None)
        await source.seek(f"kafka/{topic}/0", 4)
        last = await poll_until(source, 2, lambda _batch: None)
        await source.seek(f"kafka/{topic}/0", None)
        everything = await poll_until(source, 6, lambda _batch: None)
    assert (last[0].expected_offset, last[0].records[0].offset) == (4, 4)
    assert (everything[0].expected_offset, everything[0].records[0].offset) == (None, 0)


async def test_a_second_consumer_takes_partitions_over_without_doubling(
    broker: Broker, ledger: Ledger, ledger_url: str
) -> None:
    topic = await new_topic(broker.bootstrap, num_partitions=4)
    await send_events(broker.bootstrap, topic, [usage(n) for n in range(40)], num_partitions=4)
    async with (
        reading(broker, topic, ledger.next_offset) as first,
        reading(broker, topic, ledger.next_offset) as second,
    ):
        await poll_until(first, 40, posting(ledger))
        later = [usage(n) for n in range(40, 80)]
        await send_events(broker.bootstrap, topic, later, num_partitions=4)
        async with asyncio.timeout(PATIENCE_S):
            while totals(ledger_url, "acme").num_requests < 80:
                for source in (first, second):
                    for batch in await source.poll():
                        ledger.post(rate_batch(batch, BOOK))
    assert [ledger.next_offset(f"kafka/{topic}/{n}") for n in range(4)] == [20] * 4


async def test_bad_records_become_dead_letters_at_their_offset(
    broker: Broker, ledger: Ledger, ledger_url: str
) -> None:
    topic = await new_topic(broker.bootstrap, num_partitions=1)
    values = [b"junk", encode_usage_event(usage(1)), None, encode_usage_event(usage(2))]
    async with producing(broker.bootstrap) as producer:
        await send_raw(producer, topic, values, num_partitions=1)
    seen: list[tuple[int, str]] = []

    def post(batch: Batch) -> None:
        rated = rate_batch(batch, BOOK)
        seen.extend((d.offset, d.reason.value) for d in rated.dead_letters)
        ledger.post(rated)

    async with reading(broker, topic, ledger.next_offset) as source:
        await poll_until(source, 4, post)
    assert seen == [(0, "undecodable"), (2, "corrupt")]
    assert totals(ledger_url, "acme").num_requests == 2


async def test_a_broker_that_falls_silent_is_noticed_and_found_again(
    tansu: Broker, ledger: Ledger, ledger_url: str
) -> None:
    """aiokafka#1154: without a deadline of ours the consumer would wait for ever."""
    topic = await new_topic(tansu.bootstrap, num_partitions=1)
    await send_events(tansu.bootstrap, topic, [usage(1)], num_partitions=1)
    short = tansu.shortest_session_s  # of the consumer that is given up, and waited for
    async with reading(
        tansu, topic, ledger.next_offset, session_timeout_s=short, stall_timeout_s=3
    ) as source:
        await poll_until(source, 1, posting(ledger))
        tansu.pause()
        try:
            with pytest.raises(SourceUnavailable):
                await poll_until(source, 1, posting(ledger))
        finally:
            tansu.resume()
        await send_events(tansu.bootstrap, topic, [usage(2)], num_partitions=1)
        await poll_until(source, 1, posting(ledger))
    assert totals(ledger_url, "acme").num_requests == 2


async def test_going_back_on_a_broker_that_is_silent_is_an_error_that_may_pass(
    tansu: Broker, ledger: Ledger
) -> None:
    """Only the beginning has to be asked for; what is polled next is where the ledger stands."""
    topic = await new_topic(tansu.bootstrap, num_partitions=1)
    await send_events(tansu.bootstrap, topic, [usage(1), usage(2)], num_partitions=1)
    async with reading(tansu, topic, ledger.next_offset, stall_timeout_s=3) as source:
        await poll_until(source, 2, lambda _batch: None)
        tansu.pause()
        try:
            with pytest.raises(SourceUnavailable, match="kafka: TimeoutError"):
                await source.seek(f"kafka/{topic}/0", None)
        finally:
            tansu.resume()
        await poll_until(source, 2, posting(ledger))
    assert ledger.next_offset(f"kafka/{topic}/0") == 2


async def test_silence_without_events_is_no_failure(tansu: Broker) -> None:
    topic = await new_topic(tansu.bootstrap, num_partitions=1)
    async with reading(tansu, topic, from_the_beginning, stall_timeout_s=10) as source:
        for _ in range(10):
            assert await source.poll() == []


async def test_a_topic_may_be_created_later(broker: Broker, ledger: Ledger) -> None:
    topic = new_name()
    async with reading(broker, topic, ledger.next_offset) as source:
        assert await source.poll() == []
        await create_topic(broker.bootstrap, topic, num_partitions=2)
        await send_events(broker.bootstrap, topic, [usage(1), usage(2)], num_partitions=2)
        await poll_until(source, 2, posting(ledger))


async def test_no_broker_at_all_is_an_error_that_may_pass() -> None:
    source = KafkaSource(
        brokers=lambda: {"bootstrap_servers": f"127.0.0.1:{free_port()}"},
        topic="usage",
        group="group",
        session_timeout_s=6,
        stall_timeout_s=60,
        next_offset=from_the_beginning,
    )
    for _ in range(2):
        with pytest.raises(SourceUnavailable, match="kafka"):
            await source.poll()
    await source.close()


async def test_records_of_an_aborted_transaction_are_not_seen(
    apache: Broker, ledger: Ledger, ledger_url: str
) -> None:
    topic = await new_topic(apache.bootstrap, num_partitions=1)
    async with producing(apache.bootstrap, transactional_id=topic) as producer:
        for number, outcome in enumerate(["commit", "abort", "commit"]):
            await producer.begin_transaction()
            payload = encode_usage_event(usage(number))
            await send_raw(producer, topic, [payload], num_partitions=1)
            await getattr(producer, f"{outcome}_transaction")()
    async with reading(apache, topic, ledger.next_offset) as source:
        batches = await poll_until(source, 2, posting(ledger))
    assert [r.offset for b in batches for r in b.records] == [0, 4]  # markers take offsets too
    assert totals(ledger_url, "acme").num_requests == 2


async def test_events_deleted_before_they_were_posted_stop_it(
    apache: Broker, ledger: Ledger
) -> None:
    """aiokafka#261: to jump to what is left would lose money in silence."""
    topic = await new_topic(apache.bootstrap, num_partitions=1)
    await send_events(apache.bootstrap, topic, [usage(1)], num_partitions=1)
    async with reading(apache, topic, ledger.next_offset) as source:
        await poll_until(source, 1, posting(ledger))
    await send_events(apache.bootstrap, topic, [usage(n) for n in (2, 3, 4)], num_partitions=1)
    async with administration(apache.bootstrap) as admin:
        await admin.delete_records({TopicPartition(topic, 0): RecordsToDelete(before_offset=3)})
    async with reading(apache, topic, ledger.next_offset) as source:
        with pytest.raises(SourceLost, match="outside the topic"):
            await poll_until(source, 1, posting(ledger))


async def test_what_the_ledger_has_not_read_of_the_topic_is_counted(
    apache: Broker, ledger: Ledger
) -> None:
    """Tansu counts batches, not records."""
    topic = await new_topic(apache.bootstrap, num_partitions=2)
    brokers = {"bootstrap_servers": apache.bootstrap}

    async def unread() -> int:
        behind = await asyncio.to_thread(lag_behind, brokers, topic, ledger.next_offset)
        return behind.num_unread

    assert await unread() == 0
    await send_events(apache.bootstrap, topic, [usage(n) for n in range(5)], num_partitions=2)
    assert await unread() == 5
    async with reading(apache, topic, ledger.next_offset) as source:
        await poll_until(source, 5, lambda batch: ledger.post(rate_batch(batch, BOOK)))
    assert await unread() == 0


async def test_a_ledger_ahead_of_its_topic_hides_no_lag_of_another_partition(tansu: Broker) -> None:
    """The topic was made anew."""
    topic = await new_topic(tansu.bootstrap, num_partitions=2)
    brokers = {"bootstrap_servers": tansu.bootstrap}
    stored = {f"kafka/{topic}/0": 9}
    with pytest.raises(SourceUnavailable, match="ahead"):
        await asyncio.to_thread(lag_behind, brokers, topic, stored.get)


async def test_of_brokers_that_are_gone_nobody_says_that_all_is_read(ledger: Ledger) -> None:
    gone = {"bootstrap_servers": f"127.0.0.1:{free_port()}"}
    with pytest.raises(SourceUnavailable):
        await asyncio.to_thread(lag_behind, gone, "usage.v1", ledger.next_offset)


async def test_an_alert_is_a_record_of_its_topic(tansu: Broker) -> None:
    topic = await new_topic(tansu.bootstrap, num_partitions=1)
    alerts = AlertTopic(lambda: {"bootstrap_servers": tansu.bootstrap}, topic)
    await asyncio.to_thread(alerts.send, "acme/month/2026-11/80", "acme", b"{}")
    consumer = AIOKafkaConsumer(
        topic, bootstrap_servers=tansu.bootstrap, auto_offset_reset="earliest"
    )
    try:
        await consumer.start()
        async with asyncio.timeout(PATIENCE_S):
            record = await consumer.getone()
    finally:
        await consumer.stop()
    assert (record.key, record.value) == (b"acme", b"{}")
    assert ("ce_id", b"acme/month/2026-11/80") in record.headers
    gone = AlertTopic(lambda: {"bootstrap_servers": f"127.0.0.1:{free_port()}"}, topic)
    with pytest.raises(AlertTopicUnavailable):
        await asyncio.to_thread(gone.send, "acme/month/2026-11/80", "acme", b"{}")
