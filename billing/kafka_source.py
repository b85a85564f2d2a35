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
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, ConsumerRecord, TopicPartition
from aiokafka.errors import KafkaError, NoOffsetForPartitionError, OffsetOutOfRangeError

from billing.errors import SourceLost, SourceUnavailable
from billing.lag import Lag
from billing.records import KAFKA_SOURCE, Batch, Record

logger = logging.getLogger(__name__)

_MAX_RECORDS: Final = 500
_FETCH_WAIT_MS: Final = 100
_RECEIVE_DEADLINE_S: Final = 1.0
_CALL_DEADLINE_S: Final = 10.0
_CLOSE_DEADLINE_S: Final = 5.0
_FAILURES: Final = (KafkaError, OSError, TimeoutError)

NextOffset = Callable[[str], int | None]


class KafkaSource:
    """Connects at the first poll, and again after a failure."""

    def __init__(
        self,
        *,
        brokers: Callable[[], Mapping[str, Any]],
        topic: str,
        group: str,
        session_timeout_s: float,
        stall_timeout_s: float,
        next_offset: NextOffset,
    ) -> None:
        """``brokers``: where they are and how they are spoken to, as aiokafka's arguments.

        Asked at every connection: certificates are exchanged while we run.
        """
        self._brokers = brokers
        self._topic = topic
        self._group = group
        self._session_timeout_s = session_timeout_s
        self._stall_timeout_s = stall_timeout_s
        self._next_offset = next_offset
        self._session: _Session | None = None
        self._retiring: set[asyncio.Task[None]] = set()

    async def poll(self) -> list[Batch]:
        """Up to one batch per partition, 500 records in all."""
        try:
            if self._session is None:
                self._session = await self._connect()
            return await self._session.poll()
        except OffsetOutOfRangeError as exc:
            raise SourceLost(
                f"kafka: the ledger's offset is outside the topic, events may be gone ({exc}); "
                "to go on with what is left, delete the partition's row from source_offsets"
            ) from exc
        except _FAILURES as exc:
            raise self._given_up(exc) from exc

    async def seek(self, source_id: str, offset: int | None) -> None:
        """A failure ends the session: the next one begins where the ledger stands."""
        if self._session is None:
            return
        try:
            await self._session.seek(_partition(source_id), offset)
        except _FAILURES as exc:
            raise self._given_up(exc) from exc

    async def close(self) -> None:
        self._disconnect()
        if self._retiring:
            _, unfinished = await asyncio.wait(self._retiring, timeout=_CLOSE_DEADLINE_S)
            for task in unfinished:
                task.cancel()
            await asyncio.gather(*unfinished, return_exceptions=True)

    async def _connect(self) -> "_Session":
        consumer = AIOKafkaConsumer(
            **self._brokers(),
            group_id=self._group,
            enable_auto_commit=False,
            auto_offset_reset="none",  # never jump: an offset that is gone is for a person to see
            isolation_level="read_committed",
            metadata_max_age_ms=5_000,  # a new topic or partition is noticed in seconds
            session_timeout_ms=round(self._session_timeout_s * 1000),
            heartbeat_interval_ms=round(self._session_timeout_s * 1000 / 5),
            # Joining a group is one request, and may take as long as its slowest member.
            request_timeout_ms=round(self._session_timeout_s * 1000) + 5_000,
        )
        try:
            async with asyncio.timeout(_CALL_DEADLINE_S):
                await consumer.start()
        except BaseException:
            self._retire(consumer)
            raise
        session = _Session(consumer, self._next_offset, self._stall_timeout_s)
        consumer.subscribe([self._topic], listener=session)
        return session

    def _given_up(self, exc: Exception) -> SourceUnavailable:
        self._disconnect()
        return SourceUnavailable(f"kafka: {type(exc).__name__}: {exc}")

    def _disconnect(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            self._retire(session.consumer)

    def _retire(self, consumer: Any) -> None:  # Any: aiokafka has no types
        """Beside us: its ``stop`` waits out requests to a broker that may be frozen."""
        task = asyncio.create_task(_stop(consumer))
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)


def lag_behind(brokers: Mapping[str, Any], topic: str, next_offset: NextOffset) -> Lag:
    """Of what the brokers hold, how far the ledger has read.  Blocks: no event loop's thread.

    ``brokers``: as ``KafkaSource`` gets them.

    Raises SourceUnavailable, also where the ledger stands behind a partition's end: of a topic
    that was made anew nobody can say what has been read.
    """
    try:
        return asyncio.run(_lag_behind(brokers, topic, next_offset))
    except _FAILURES as exc:
        raise SourceUnavailable(f"kafka: {type(exc).__name__}: {exc}") from exc


async def _lag_behind(brokers: Mapping[str, Any], topic: str, next_offset: NextOffset) -> Lag:
    consumer = AIOKafkaConsumer(topic, **brokers, enable_auto_commit=False)
    try:
        async with asyncio.timeout(_CALL_DEADLINE_S):
            await consumer.start()
            numbers = consumer.partitions_for_topic(topic)
            partitions = [TopicPartition(topic, number) for number in numbers or ()]
            # Asked first: billing reads on meanwhile, and must not be ahead of the ends.
            stored = {each: next_offset(_source_id(each)) for each in partitions}
            begins = await consumer.beginning_offsets(partitions)
            ends = await consumer.end_offsets(partitions)
    finally:
        async with asyncio.timeout(_CLOSE_DEADLINE_S):
            await _stop(consumer)
    read = {each: begins[each] if at is None else at for each, at in stored.items()}
    if any(read[each] > ends[each] for each in partitions):
        raise SourceUnavailable(f"kafka: the ledger is ahead of the topic {topic}")
    return Lag(
        ends={_source_id(each): ends[each] for each in partitions},
        read={_source_id(each): at for each, at in read.items()},
    )


class _Session(ConsumerRebalanceListener):  # type: ignore[misc] # aiokafka has no types
    """One consumer's life: what it is assigned, and where the ledger stands in it."""

    def __init__(
        self, consumer: Any, next_offset: NextOffset, stall_timeout_s: float
    ) -> None:  # Any: aiokafka has no types
        self.consumer = consumer
        self._next_offset = next_offset
        self._expected: dict[TopicPartition, int | None] = {}
        self._unplaced: set[TopicPartition] = set()
        self._stall_timeout_s = stall_timeout_s
        self._call_deadline_s = min(_CALL_DEADLINE_S, stall_timeout_s)
        self._alive_at_monotonic_s = _monotonic_s()
        self._probed_at_monotonic_s = self._alive_at_monotonic_s

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        for partition in revoked:
            self._expected.pop(partition, None)
            self._unplaced.discard(partition)

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        """Only takes note: aiokafka would swallow what goes wrong in here."""
        self._unplaced.update(assigned)

    async def seek(self, partition: TopicPartition, offset: int | None) -> None:
        if partition not in self.consumer.assignment():
            return
        start = offset
        if start is None:
            async with asyncio.timeout(self._call_deadline_s):
                start = (await self.consumer.beginning_offsets([partition]))[partition]
        self.consumer.seek(partition, start)
        self._expected[partition] = offset

    async def poll(self) -> list[Batch]:
        await self._place()
        batches = [
            self._batch(partition, messages)
            for partition, messages in (await self._receive()).items()
            if partition in self._expected  # else it was revoked, or has come meanwhile
        ]
        if batches:
            self._alive_at_monotonic_s = _monotonic_s()
        else:
            await self._check_alive()
        return batches

    async def _place(self) -> None:
        """Where newly assigned partitions start is for the ledger to say."""
        for partition in list(self._unplaced):
            stored = await asyncio.to_thread(self._next_offset, _source_id(partition))
            await self.seek(partition, stored)
            self._unplaced.discard(partition)
            logger.info(
                "partition assigned",
                extra={"topic": partition.topic, "partition": partition.partition},
            )

    async def _receive(self) -> Mapping[TopicPartition, Sequence[ConsumerRecord]]:
        """Empty: nothing came.  A rebalance in progress is no failure; ``_check_alive`` sees those.

        Cancelling is safe: aiokafka moves its position and returns without an await between.
        """
        try:
            async with asyncio.timeout(_RECEIVE_DEADLINE_S):
                received: Mapping[TopicPartition, Sequence[ConsumerRecord]]
                received = await self.consumer.getmany(
                    timeout_ms=_FETCH_WAIT_MS, max_records=_MAX_RECORDS
                )
                return received
        except TimeoutError:
            return {}
        except NoOffsetForPartitionError:
            return {}  # aiokafka asked Kafka where to begin before the ledger could tell it

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
        now = _monotonic_s()
        if now - self._probed_at_monotonic_s < self._stall_timeout_s / 4:
            return
        self._probed_at_monotonic_s = now
        try:
            async with asyncio.timeout(self._call_deadline_s):
                if await self._has_read_all():
                    self._alive_at_monotonic_s = now
        except (KafkaError, TimeoutError) as exc:
            logger.warning("kafka does not answer", extra={"error": type(exc).__name__})
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
    try:
        await consumer.stop()
    except Exception:
        logger.exception("kafka consumer left behind")


def _monotonic_s() -> float:
    return asyncio.get_running_loop().time()


def _record(message: ConsumerRecord) -> Record:
    if message.value is None:
        return Record(message.offset, b"", fault="a Kafka record without a value")
    return Record(message.offset, message.value)


def _source_id(partition: TopicPartition) -> str:
    return f"{KAFKA_SOURCE}{partition.topic}/{partition.partition}"


def _partition(source_id: str) -> TopicPartition:
    topic, _, number = source_id.removeprefix(KAFKA_SOURCE).rpartition("/")
    return TopicPartition(topic, int(number))
