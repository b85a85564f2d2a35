"""The usage topic of a broker, and what Tansu needs to be spoken to."""

from aiokafka import AIOKafkaConsumer, ConsumerRecord
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.protocol.api import RequestStruct, Response
from aiokafka.protocol.transaction import InitProducerIdRequest
from aiokafka.protocol.types import (
    CompactString,
    Int16,
    Int32,
    Int64,
    Schema,
    TaggedFields,
)

from contracts.names import USAGE_TOPIC
from contracts.usage import UsageEvent, cloud_event_headers, decode_usage_event


class InitProducerIdResponseV3(Response):
    API_KEY = 22
    API_VERSION = 3
    FLEXIBLE_VERSION = True
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("error_code", Int16),
        ("producer_id", Int64),
        ("producer_epoch", Int16),
        ("tags", TaggedFields),
    )


class InitProducerIdRequestV3(RequestStruct):
    """Tansu's memory engine refuses version 0, the only one that aiokafka 0.14 speaks."""

    API_KEY = 22
    API_VERSION = 3
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = InitProducerIdResponseV3
    SCHEMA = Schema(
        ("transactional_id", CompactString("utf-8")),
        ("transaction_timeout_ms", Int32),
        ("producer_id", Int64),
        ("producer_epoch", Int16),
        ("tags", TaggedFields),
    )

    def __init__(self, transactional_id: str | None, transaction_timeout_ms: int) -> None:
        super().__init__(transactional_id, transaction_timeout_ms, -1, -1, {})


def speak_init_producer_id_v3() -> None:
    InitProducerIdRequest._CLASSES = (InitProducerIdRequestV3,)


async def create_topic(bootstrap: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(USAGE_TOPIC, num_partitions=1, replication_factor=1)])
    finally:
        await admin.close()


async def consume(bootstrap: str, at_least: int) -> list[tuple[bytes, UsageEvent]]:
    """(key, event) from the topic's beginning."""
    consumer = AIOKafkaConsumer(
        USAGE_TOPIC, bootstrap_servers=bootstrap, auto_offset_reset="earliest"
    )
    await consumer.start()
    found: list[tuple[bytes, UsageEvent]] = []
    try:
        while len(found) < at_least:
            for records in (await consumer.getmany(timeout_ms=200)).values():
                found += [(r.key, _event(r)) for r in records]
    finally:
        await consumer.stop()
    return found


def _event(record: ConsumerRecord) -> UsageEvent:
    """Every record is a CloudEvent in binary mode, and says of itself what its value says."""
    event = decode_usage_event(record.value)
    assert list(record.headers) == cloud_event_headers(event)
    return event
