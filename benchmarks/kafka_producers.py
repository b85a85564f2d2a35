"""Two Kafka clients side by side, sending usage events as the gateway's shipper does.

    KAFKA_HOME=... python -m benchmarks.kafka_producers [--events 40000] [--brokers HOST:PORT]
    pip install --target FOLDER confluent-kafka; PYTHONPATH=FOLDER:. ...   (for the second client)

Both idempotent and with acks=all; a half megabyte of events is sent and acknowledged, then the
next.  confluent-kafka's async producer takes no headers, which CloudEvents are made of, so each
is measured without them, and ours with them, too.  CPU time is of this process, all threads.
"""

import argparse
import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.billing import event
from contracts.usage import Headers, cloud_event_headers, encode_usage_event
from tests.billing.kafka_topic import new_topic, producing
from tests.support.kafka_brokers import apache_kafka, kafka_home, running

BATCH = 600  # events in half a megabyte

Message = tuple[bytes, bytes, Headers | None]
Send = Callable[[str, Sequence[Message]], Awaitable[None]]


@asynccontextmanager
async def aiokafka_sending(bootstrap: str) -> AsyncIterator[Send]:
    async with producing(bootstrap, enable_idempotence=True) as producer:

        async def send(topic: str, messages: Sequence[Message]) -> None:
            sent = [
                await producer.send(topic, key=key, value=value, headers=headers)
                for key, value, headers in messages
            ]
            await asyncio.gather(*sent)

        yield send


@asynccontextmanager
async def confluent_sending(bootstrap: str) -> AsyncIterator[Send]:
    from confluent_kafka.aio import AIOProducer

    options = {"bootstrap.servers": bootstrap, "enable.idempotence": True, "acks": "all"}
    producer: Any = AIOProducer(options, batch_size=BATCH, buffer_timeout=0.01)  # no types
    try:

        async def send(topic: str, messages: Sequence[Message]) -> None:
            sent = [
                await producer.produce(topic, key=key, value=value) for key, value, _ in messages
            ]
            await producer.flush()
            await asyncio.gather(*sent)

        yield send
    finally:
        await producer.close()


async def measure(name: str, send: Send, bootstrap: str, messages: Sequence[Message]) -> None:
    topic = await new_topic(bootstrap, num_partitions=4)
    await send(topic, messages[:BATCH])  # connections, metadata, a producer id
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    for start in range(BATCH, len(messages), BATCH):
        await send(topic, messages[start : start + BATCH])
    wall_s, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
    num_sent = len(messages) - BATCH
    print(f"{name:32} {num_sent / wall_s:>9,.0f} events/s  {cpu_s / num_sent * 1e6:5.1f} us of CPU")


async def measure_all(bootstrap: str, num_events: int) -> None:
    events = [event(number) for number in range(num_events + BATCH)]
    plain: list[Message] = [(e.tenant_id.encode(), encode_usage_event(e), None) for e in events]
    with_headers: list[Message] = [
        (e.tenant_id.encode(), encode_usage_event(e), cloud_event_headers(e)) for e in events
    ]
    for _ in range(2):  # in turn, twice: what differs between two rounds is noise
        async with aiokafka_sending(bootstrap) as send:
            await measure("aiokafka", send, bootstrap, plain)
            await measure("aiokafka, headers", send, bootstrap, with_headers)
        if find_spec("confluent_kafka") is None:
            print("confluent-kafka is not installed: see above")
            continue
        async with confluent_sending(bootstrap) as send:
            await measure("confluent-kafka", send, bootstrap, plain)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--events", type=int, default=40_000)
    parser.add_argument("--brokers", help="in place of KAFKA_HOME's")
    options = parser.parse_args()
    with ExitStack() as stack:
        bootstrap = options.brokers
        if bootstrap is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            broker = stack.enter_context(running(apache_kafka(kafka_home(), Path(folder))))
            bootstrap = broker.bootstrap
        asyncio.run(measure_all(bootstrap, options.events))


if __name__ == "__main__":
    main()
