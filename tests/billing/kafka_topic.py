"""A topic of its own for each test, and what a test puts there."""

import asyncio
import itertools
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from contracts.usage import UsageEvent, encode_usage_event
from tests.support.waiting import PATIENCE_S


@asynccontextmanager
async def administration(bootstrap: str) -> AsyncIterator[AIOKafkaAdminClient]:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        await admin.start()
        yield admin
    finally:
        await admin.close()


def new_name() -> str:
    return f"usage-{uuid.uuid4().hex}"


async def create_topic(bootstrap: str, topic: str, *, num_partitions: int) -> None:
    """Once the broker serves it: it says that it is made a moment before."""
    async with administration(bootstrap) as admin, asyncio.timeout(PATIENCE_S):
        await admin.create_topics([NewTopic(topic, num_partitions, replication_factor=1)])
        while await _num_served(admin, topic) < num_partitions:  # noqa: ASYNC110 - the brokers'
            await asyncio.sleep(0.02)


async def _num_served(admin: AIOKafkaAdminClient, topic: str) -> int:
    (told,) = await admin.describe_topics([topic])
    return sum(partition["leader"] >= 0 for partition in told["partitions"])


async def new_topic(bootstrap: str, *, num_partitions: int) -> str:
    topic = new_name()
    await create_topic(bootstrap, topic, num_partitions=num_partitions)
    return topic


@asynccontextmanager
async def producing(bootstrap: str, **options: object) -> AsyncIterator[AIOKafkaProducer]:
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all", **options)
    try:
        await producer.start()
        yield producer
    finally:
        await producer.stop()


async def send_raw(
    producer: AIOKafkaProducer, topic: str, values: Sequence[bytes | None], *, num_partitions: int
) -> None:
    """Round robin over the partitions; returns when all are acknowledged."""
    partitions = itertools.cycle(range(num_partitions))
    sent = [
        await producer.send(topic, value, partition=next(partitions), key=b"acme")
        for value in values
    ]
    for acknowledgement in sent:
        await acknowledgement


async def send_events(
    bootstrap: str, topic: str, events: Sequence[UsageEvent], *, num_partitions: int
) -> None:
    async with producing(bootstrap) as producer:
        payloads = [encode_usage_event(event) for event in events]
        await send_raw(producer, topic, payloads, num_partitions=num_partitions)
