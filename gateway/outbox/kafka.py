"""Ships the spool to Kafka; the only module that knows aiokafka.

Requests never wait for it.  Delivery is at least once: what was sent is checkpointed after the
brokers have acknowledged it.  aiokafka waits for ever for a broker that is gone (aiokafka#1101), so
every call has a deadline, and a producer that failed is thrown away.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Generator, Mapping
from functools import partial
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaConnectionError, KafkaError

from contracts.names import USAGE_TOPIC
from gateway.backoff import backoff_s
from gateway.outbox.unshipped import Batch
from gateway.worker_thread import WorkerThread

logger = logging.getLogger(__name__)

_START_S = 10.0  # metadata and a producer id: two round trips, one leader election
_SEND_S = 15.0  # a batch, all replicas
_STOP_S = 2.0
_REQUEST_MS = 5_000
_IDLE_S = 0.2  # between two looks at an idle spool
_BACKOFF_S = (0.5, 1.0, 2.0, 5.0)

Pass = Generator[Batch]


class KafkaShipper:
    """``open_pass`` starts a pass over the spool; it is used from one thread of the shipper's."""

    def __init__(
        self,
        brokers: Callable[[], Mapping[str, Any]],
        open_pass: Callable[[], Pass],
        on_shipped: Callable[[int], None],
    ) -> None:
        """``brokers``: where they are and how they are spoken to, as aiokafka's arguments.

        Asked at every connection: certificates are exchanged while we run.
        """
        self._brokers = brokers
        self._open_pass = open_pass
        self._on_shipped = on_shipped
        self._disk = WorkerThread("spool-reader")
        self._fault: str | None = None
        self._producer: Any = None  # aiokafka has no types; None: not connected

    async def run(self) -> None:
        """Runs until cancelled; an outage is waited out."""
        num_failures = 0
        try:
            while True:
                num_failures = 0 if await self._try_to_ship() else num_failures + 1
                pause_s = backoff_s(_BACKOFF_S, num_failures) if num_failures else _IDLE_S
                await asyncio.sleep(pause_s)
        finally:
            self._disk.stop()
            await self._retire()

    async def _try_to_ship(self) -> bool:
        """True when the spool holds no more, False when something is in the way."""
        try:
            while await self._ship_all():
                self._fault = None
        except KafkaError as exc:
            self._tell("kafka unreachable, events wait in the spool", exc)
            await self._retire()
            return False
        except OSError as exc:  # our own disk's: the brokers are as well as they were
            self._tell("spool cannot be read, events wait in it", exc)
            return False
        self._fault = None
        return True

    async def _ship_all(self) -> int:
        """One pass over the spool; how many events were shipped.  Raises KafkaError, OSError."""
        waiting, num_shipped = self._open_pass(), 0
        try:
            while (batch := await self._disk.call(partial(next, waiting, None))) is not None:
                if batch:
                    await self._send(batch)
                num_shipped += len(batch)
                self._on_shipped(len(batch))
        finally:
            self._disk.submit(waiting.close)  # not waited for: the disk may be what hangs
        return num_shipped

    # The brokers

    async def _send(self, batch: Batch) -> None:
        """Acknowledged by all in-sync replicas when it returns.  Raises KafkaError."""
        try:
            producer = await self._connected()
            async with asyncio.timeout(_SEND_S):
                acknowledgements = [
                    await producer.send(
                        USAGE_TOPIC, key=record.key, value=record.value, headers=record.headers
                    )
                    for record in batch
                ]
                await asyncio.gather(*acknowledgements)
        except OSError as exc:  # a deadline's, or a socket's
            raise KafkaConnectionError(repr(exc)) from exc

    async def _connected(self) -> Any:  # aiokafka has no types
        if self._producer is None:
            producer = AIOKafkaProducer(
                **self._brokers(),
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
        except (KafkaError, OSError):
            # stop() waits for the unsent batches, and aiokafka has no public way to drop them; they
            # are in the spool, so end the private task that would send them, within bounds, too.
            with contextlib.suppress(KafkaError, OSError):
                async with asyncio.timeout(_STOP_S):
                    await producer._sender.close()
                    await producer.client.close()

    def _tell(self, fault: str, exc: Exception) -> None:
        if fault != self._fault:  # once per outage
            logger.error(fault, extra={"error": repr(exc)[:200]})
        self._fault = fault
