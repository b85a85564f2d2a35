"""Reads usage events from Kafka; the only module that knows aiokafka.

The group only spreads partitions over consumers.  Where to read on is in the ledger: each
assignment seeks there, nothing is ever committed to Kafka, and the ledger's compare-and-set fences
whoever still reads a partition that has moved on.  Records of aborted transactions are not seen.

aiokafka waits for ever on a broker that is gone, and may fall silent after one came back
(aiokafka#1101, #1154).  So every call has a deadline, and a consumer that has neither received a
record nor proved that there was none is thrown away and made anew.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, ConsumerRecord, TopicPartition
from aiokafka.errors import KafkaError, OffsetOutOfRangeError

from billing.errors import SourceLost, SourceUnavailable
from billing.records import Batch, Record

logger = logging.getLogger(__name__)

_MAX_RECORDS: Final = 500
_FETCH_WAIT_MS: Final = 100
_CALL_DEADLINE_S: Final = 10.0
_SOURCE_PREFIX: Final = "kafka/"

NextOffset = Callable[[str], int | None]


class KafkaSource:
    """Connects at the first poll, and again after a failure."""

    def __init__(
        self,
        *,
        bootstrap: str,
        topic: str,
        group: str,
        stall_timeout_s: float,
        next_offset: NextOffset,
    ) -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self._group = group
        self._stall_timeout_s = stall_timeout_s
        self._next_offset = next_offset
        self._session: _Session | None = None

    async def poll(self) -> list[Batch]:
        """Up to one batch per partition, 500 records in all."""
        try:
            if self._session is None:
                self._session = await self._connect()
            return await self._session.poll()
        except OffsetOutOfRangeError as exc:
            raise SourceLost(
                f"kafka: the ledger's offset is outside the topic, events may be gone: {exc}"
            ) from exc
        except (KafkaError, OSError, TimeoutError) as exc:
            await self.close()
            raise SourceUnavailable(f"kafka: {type(exc).__name__}: {exc}") from exc

    async def seek(self, source_id: str, offset: int | None) -> None:
        if self._session is not None:
            await self._session.seek(_partition(source_id), offset)

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await _stop(session.consumer)

    async def _connect(self) -> "_Session":
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self._bootstrap,
            group_id=self._group,
            enable_auto_commit=False,
            auto_offset_reset="none",  # never jump: an offset that is gone is for a person to see
            isolation_level="read_committed",
            metadata_max_age_ms=5_000,  # a new topic or partition is noticed in seconds
            session_timeout_ms=10_000,
            heartbeat_interval_ms=1_000,
        )
        try:
            async with asyncio.timeout(_CALL_DEADLINE_S):
                await consumer.start()
        except BaseException:
            await _stop(consumer)
            raise
        session = _Session(consumer, self._next_offset, self._stall_timeout_s)
        consumer.subscribe([self._topic], listener=session)
        return session


class _Session(ConsumerRebalanceListener):  # type: ignore[misc] # aiokafka has no types
    """One consumer's life: what it is assigned, and where the ledger stands in it."""

    def __init__(
        self, consumer: Any, next_offset: NextOffset, stall_timeout_s: float
    ) -> None:  # Any: aiokafka has no types
        self.consumer = consumer
        self._next_offset = next_offset
        self._expected: dict[TopicPartition, int | None] = {}
        self._stall_timeout_s = stall_timeout_s
        self._alive_at_monotonic_s = time.monotonic()
        self._probed_at_monotonic_s = self._alive_at_monotonic_s

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        for partition in revoked:
            self._expected.pop(partition, None)

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        for partition in assigned:
            stored = await asyncio.to_thread(self._next_offset, _source_id(partition))
            await self.seek(partition, stored)
            logger.info(
                "partition assigned",
                extra={"topic": partition.topic, "partition": partition.partition},
            )

    async def seek(self, partition: TopicPartition, offset: int | None) -> None:
        if partition not in self.consumer.assignment():
            return
        start = offset
        if start is None:
            async with asyncio.timeout(_CALL_DEADLINE_S):
                start = (await self.consumer.beginning_offsets([partition]))[partition]
        self.consumer.seek(partition, start)
        self._expected[partition] = offset

    async def poll(self) -> list[Batch]:
        async with asyncio.timeout(_CALL_DEADLINE_S):
            received = await self.consumer.getmany(
                timeout_ms=_FETCH_WAIT_MS, max_records=_MAX_RECORDS
            )
        batches = [
            self._batch(partition, messages)
            for partition, messages in received.items()
            if partition in self._expected  # else it was revoked meanwhile
        ]
        if batches:
            self._alive_at_monotonic_s = time.monotonic()
        else:
            await self._check_alive()
        return batches

    def _batch(self, partition: TopicPartition, messages: Sequence[ConsumerRecord]) -> Batch:
        batch = Batch(
            source_id=_source_id(partition),
            expected_offset=self._expected[partition],
            next_offset=messages[-1].offset + 1,
            records=[_record(message) for message in messages],
        )
        self._expected[partition] = batch.next_offset
        return batch

    async def _check_alive(self) -> None:
        """Silence is fine while the broker confirms it.  Raises TimeoutError."""
        now = time.monotonic()
        if now - self._probed_at_monotonic_s < self._stall_timeout_s / 4:
            return
        self._probed_at_monotonic_s = now
        with suppress(KafkaError, TimeoutError):
            async with asyncio.timeout(min(_CALL_DEADLINE_S, self._stall_timeout_s)):
                if await self._has_read_all():
                    self._alive_at_monotonic_s = now
        if now - self._alive_at_monotonic_s > self._stall_timeout_s:
            raise TimeoutError(f"nothing received for {self._stall_timeout_s} s")

    async def _has_read_all(self) -> bool:
        partitions = list(self._expected)
        if not partitions:
            await self.consumer.topics()  # none assigned: an answer is all there is to expect
            return True
        ends = await self.consumer.end_offsets(partitions)
        for partition in partitions:
            if await self.consumer.position(partition) < ends[partition]:
                return False
        return True


async def _stop(consumer: Any) -> None:
    """``stop`` may wait for a broker that is gone."""
    try:
        async with asyncio.timeout(_CALL_DEADLINE_S):
            await consumer.stop()
    except (KafkaError, TimeoutError) as exc:
        logger.warning("kafka consumer left behind", extra={"error": type(exc).__name__})


def _record(message: ConsumerRecord) -> Record:
    if message.value is None:
        return Record(message.offset, b"", fault="a Kafka record without a value")
    return Record(message.offset, message.value)


def _source_id(partition: TopicPartition) -> str:
    return f"{_SOURCE_PREFIX}{partition.topic}/{partition.partition}"


def _partition(source_id: str) -> TopicPartition:
    topic, _, number = source_id.removeprefix(_SOURCE_PREFIX).rpartition("/")
    return TopicPartition(topic, int(number))
