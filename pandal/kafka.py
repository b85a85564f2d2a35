"""Whether the brokers that are to carry usage events are there; pandal's only use of aiokafka."""

import asyncio
import logging
from contextlib import suppress

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError, UnknownTopicOrPartitionError

from pandal.errors import PreflightFailed
from pandal.settings import KAFKA_BOOTSTRAP

ANSWER_DEADLINE_S = 5.0  # a broker on a busy machine answers in milliseconds
_CLOSE_DEADLINE_S = 0.5
_TOPIC_PATIENCE_S = 3.0  # brokers that make topics by themselves take a moment


def check_brokers(bootstrap: str, topic: str) -> None:
    """Blocks.  Raises PreflightFailed unless Kafka answers at ``bootstrap`` and has ``topic``."""
    # It reports each attempt in lines of its own; the one line for people is ours.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    asyncio.run(_check_brokers(bootstrap, topic))


async def _check_brokers(bootstrap: str, topic: str) -> None:
    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap, request_timeout_ms=round(_TOPIC_PATIENCE_S * 1000)
    )
    try:
        async with asyncio.timeout(ANSWER_DEADLINE_S):
            await producer.start()
            await producer.partitions_for(topic)
    except UnknownTopicOrPartitionError as exc:
        raise _failed(bootstrap, f"has no topic {topic!r}; create it first") from exc
    except TimeoutError as exc:
        raise _failed(bootstrap, f"does not answer in {ANSWER_DEADLINE_S:g} s") from exc
    except (KafkaError, OSError) as exc:
        raise _failed(bootstrap, "cannot be reached") from exc
    finally:
        with suppress(KafkaError, OSError):  # a deadline's, too
            async with asyncio.timeout(_CLOSE_DEADLINE_S):
                await producer.stop()


def _failed(bootstrap: str, fact: str) -> PreflightFailed:
    return PreflightFailed(f"Kafka at {bootstrap} ({KAFKA_BOOTSTRAP}) {fact}")
