"""Whether the brokers that are to carry usage events are there; pandal's only use of aiokafka."""

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError, UnknownTopicOrPartitionError

from billing.errors import SourceUnavailable
from billing.kafka_wiring import KafkaAccess, client_arguments
from pandal.errors import PreflightFailed
from pandal.settings import KAFKA_BOOTSTRAP

ANSWER_DEADLINE_S = 5.0  # a broker on a busy machine answers in milliseconds
_CLOSE_DEADLINE_S = 0.5
_TOPIC_PATIENCE_S = 3.0  # brokers that make topics by themselves take a moment


Brokers = Mapping[str, Any]
"""Where they are and how they are spoken to, as aiokafka's arguments: it has no types."""


def brokers_at(bootstrap: str, access: KafkaAccess) -> Brokers:
    """Raises PreflightFailed for certificates that cannot be read."""
    try:
        return {"bootstrap_servers": bootstrap, **client_arguments(access)}
    except SourceUnavailable as exc:
        raise PreflightFailed(str(exc)) from exc


def check_brokers(brokers: Brokers, topic: str) -> None:
    """Blocks.  Raises PreflightFailed unless Kafka answers there and has ``topic``."""
    # It reports each attempt in lines of its own; the one line for people is ours.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    asyncio.run(_check_brokers(brokers, topic))


async def _check_brokers(brokers: Brokers, topic: str) -> None:
    producer = AIOKafkaProducer(**brokers, request_timeout_ms=round(_TOPIC_PATIENCE_S * 1000))
    try:
        async with asyncio.timeout(ANSWER_DEADLINE_S):
            await producer.start()
            await producer.partitions_for(topic)
    except UnknownTopicOrPartitionError as exc:
        raise _failed(brokers, f"has no topic {topic!r}; create it first") from exc
    except TimeoutError as exc:
        raise _failed(brokers, f"does not answer in {ANSWER_DEADLINE_S:g} s") from exc
    except (KafkaError, OSError) as exc:
        raise _failed(brokers, "cannot be reached") from exc
    finally:
        with suppress(KafkaError, OSError):  # a deadline's, too
            async with asyncio.timeout(_CLOSE_DEADLINE_S):
                await producer.stop()


def _failed(brokers: Brokers, fact: str) -> PreflightFailed:
    return PreflightFailed(f"Kafka at {brokers['bootstrap_servers']} ({KAFKA_BOOTSTRAP}) {fact}")


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """``None`` where the brokers do not tell."""

    num_partitions: int
    least_replicas: int  # of its partitions
    least_in_sync: int
    min_in_sync: int | None  # without so many, nothing is accepted
    retention_ms: int | None  # -1: for ever


def topic_facts(brokers: Brokers, topic: str) -> TopicFacts | None:
    """Blocks.  ``None``: there is no such topic.  Raises PreflightFailed."""
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    return asyncio.run(_topic_facts(brokers, topic))


async def _topic_facts(brokers: Brokers, topic: str) -> TopicFacts | None:
    admin = AIOKafkaAdminClient(**brokers)
    try:
        async with asyncio.timeout(ANSWER_DEADLINE_S):
            await admin.start()
            (described,) = await admin.describe_topics([topic])
            partitions = described["partitions"]
            if described["error_code"] or not partitions:
                return None
            configured = await _topic_settings(admin, topic)
    except TimeoutError as exc:
        raise _failed(brokers, f"does not answer in {ANSWER_DEADLINE_S:g} s") from exc
    except (KafkaError, OSError) as exc:
        raise _failed(brokers, "cannot be reached") from exc
    finally:
        with suppress(KafkaError, OSError):
            await admin.close()
    return TopicFacts(
        num_partitions=len(partitions),
        least_replicas=min(len(p["replicas"]) for p in partitions),
        least_in_sync=min(len(p["isr"]) for p in partitions),
        min_in_sync=_whole(configured.get("min.insync.replicas")),
        retention_ms=_whole(configured.get("retention.ms")),
    )


async def _topic_settings(admin: AIOKafkaAdminClient, topic: str) -> Mapping[str, str]:
    """Empty where the brokers do not tell."""
    try:
        answers = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
    except KafkaError:
        return {}
    entries = [
        entry for answer in answers for resource in answer.resources for entry in resource[4]
    ]
    return {str(entry[0]): str(entry[1]) for entry in entries}


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.lstrip("-").isdigit() else None
