"""Tells alerts to a Kafka topic, until the brokers have them.

A producer for each alert: there are few, and none is kept that has lost its broker (aiokafka#1101).
At least once: the header ``ce_id`` is the same each time.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from billing.errors import AlertTopicUnavailable, SourceUnavailable
from contracts.alerts import alert_headers

_DEADLINE_S: Final = 10.0  # metadata, and a leader election
_CLOSE_DEADLINE_S: Final = 2.0


class AlertTopic:
    def __init__(self, brokers: Callable[[], Mapping[str, Any]], topic: str) -> None:
        """``brokers``: where they are and how they are spoken to, as aiokafka's arguments.

        Asked at every alert: certificates are exchanged while we run.
        """
        self._brokers = brokers
        self._topic = topic

    def send(self, alert_id: str, tenant_id: str, document: bytes) -> None:
        """Blocks, within a deadline: for no event loop's thread.  Raises AlertTopicUnavailable."""
        try:
            asyncio.run(self._send(alert_id, tenant_id, document))
        except SourceUnavailable as exc:  # says itself what to mend
            raise AlertTopicUnavailable(f"alerts' topic: {exc}") from exc
        except (KafkaError, OSError) as exc:  # a deadline's, too
            raise AlertTopicUnavailable(f"alerts' topic: {type(exc).__name__}") from exc

    async def _send(self, alert_id: str, tenant_id: str, document: bytes) -> None:
        producer = AIOKafkaProducer(**self._brokers(), acks="all")
        try:
            async with asyncio.timeout(_DEADLINE_S):
                await producer.start()
                await producer.send_and_wait(
                    self._topic,
                    key=tenant_id.encode(),
                    value=document,
                    headers=alert_headers(alert_id, tenant_id),
                )
        finally:
            async with asyncio.timeout(_CLOSE_DEADLINE_S):
                await producer.stop()
