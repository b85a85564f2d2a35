"""Ships the spool to Kafka; the only module that knows aiokafka.

Requests never wait for it.  Delivery is at least once: a line's offset is recorded after the
brokers have acknowledged it.  aiokafka waits for ever for a broker that is gone (aiokafka#1101), so
every call has a deadline, and a producer that failed is thrown away.

A shipper takes its own boot's segments, and those whose writer is dead.  A segment that will not
grow and has been shipped whole is removed.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from contracts.errors import ContractError
from contracts.names import USAGE_TOPIC
from contracts.spool import unframe
from contracts.usage import decode_usage_event
from gateway.outbox.segments import SegmentFile, segments_of

logger = logging.getLogger(__name__)

_START_S = 10.0  # metadata and a producer id: two round trips, one leader election
_SEND_S = 15.0  # a batch, all replicas
_STOP_S = 2.0
_REQUEST_MS = 5_000
_BATCH_BYTES = 512 * 1024
_IDLE_S = 0.2  # between two looks at an idle spool
_BACKOFF_S = (0.5, 1.0, 2.0, 5.0)


@dataclass(frozen=True, slots=True)
class _Record:
    key: bytes  # the tenant: one tenant's events stay in order
    value: bytes


class KafkaShipper:
    def __init__(
        self, bootstrap: str, folder: Path, boot_id: str, on_shipped: Callable[[int], None]
    ) -> None:
        self._bootstrap = bootstrap
        self._folder = folder
        self._boot_id = boot_id
        self._on_shipped = on_shipped
        self._producer: Any = None  # aiokafka has no types; None: not connected

    async def run(self) -> None:
        """Runs until cancelled; an outage is waited out."""
        failures = 0
        try:
            while True:
                try:
                    is_idle = await self._ship_all() == 0
                except (KafkaError, TimeoutError, OSError) as exc:
                    if failures == 0:
                        self._tell_outage(exc)
                    await self._retire()
                    await asyncio.sleep(_BACKOFF_S[min(failures, len(_BACKOFF_S) - 1)])
                    failures += 1
                    continue
                failures = 0
                if is_idle:
                    await asyncio.sleep(_IDLE_S)
        finally:
            await self._retire()

    # The spool

    async def _ship_all(self) -> int:
        """One pass over the spool; how many events were shipped."""
        num_shipped = 0
        segments = segments_of(self._folder)
        newest = max((s.index for s in segments if s.boot_id == self._boot_id), default=None)
        for segment in segments:
            if segment.boot_id == self._boot_id:
                num_shipped += await self._ship(segment, may_remove=segment.index != newest)
                continue
            with segment.claimed() as is_claimed:
                if is_claimed:  # its writer is dead
                    num_shipped += await self._ship(segment, may_remove=True)
        return num_shipped

    async def _ship(self, segment: SegmentFile, *, may_remove: bool) -> int:
        offset_bytes, num_shipped = segment.shipped_bytes(), 0
        while lines := segment.read_lines(offset_bytes, _BATCH_BYTES):
            records = [r for line in lines if (r := _record(line, segment)) is not None]
            await self._send(records)
            offset_bytes += sum(map(len, lines))
            segment.record_shipped(offset_bytes)
            num_shipped += len(records)
            self._on_shipped(len(records))
        if may_remove:
            segment.remove()
        return num_shipped

    # The brokers

    async def _send(self, records: Sequence[_Record]) -> None:
        """Acknowledged by all in-sync replicas when it returns."""
        producer = await self._connected()
        async with asyncio.timeout(_SEND_S):
            acknowledgements = [
                await producer.send(USAGE_TOPIC, key=record.key, value=record.value)
                for record in records
            ]
            await asyncio.gather(*acknowledgements)

    async def _connected(self) -> Any:  # aiokafka has no types
        if self._producer is None:
            producer = AIOKafkaProducer(
                bootstrap_servers=self._bootstrap,
                acks="all",
                enable_idempotence=True,
                request_timeout_ms=_REQUEST_MS,
            )
            self._producer = producer
            async with asyncio.timeout(_START_S):
                await producer.start()
            logger.info("kafka connected", extra={"topic": USAGE_TOPIC})
        return self._producer

    async def _retire(self) -> None:
        producer, self._producer = self._producer, None
        if producer is None:
            return
        try:
            async with asyncio.timeout(_STOP_S):
                await producer.stop()
        except (KafkaError, TimeoutError):
            # Its own stop waits for the unsent batches; they are in the spool, so drop them.
            await producer._sender.close()
            await producer.client.close()

    def _tell_outage(self, exc: Exception) -> None:
        logger.error(
            "kafka unreachable, events wait in the spool", extra={"error": repr(exc)[:200]}
        )


def _record(line: bytes, segment: SegmentFile) -> _Record | None:
    """``None`` for a line that is corrupt; it has been set aside."""
    try:
        payload = unframe(line)
        event = decode_usage_event(payload)
    except ContractError as exc:
        segment.set_aside(line)
        fields = {"segment": segment.path.name, "error": str(exc)}
        logger.warning("corrupt spool line set aside", extra=fields)
        return None
    return _Record(event.tenant_id.encode(), payload)
