"""A one-node Apache Kafka, as its own archive starts it."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from contracts.names import USAGE_TOPIC
from tests.system.fleet_process import eventually, free_port, is_listening

CONFIG = """
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{broker}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={logs}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
"""


@contextmanager
def kafka(home: Path, folder: Path) -> Iterator[str]:
    """HOST:PORT of a broker that has the usage topic."""
    broker, controller = free_port(), free_port()
    config = folder / "server.properties"
    config.write_text(
        CONFIG.format(broker=broker, controller=controller, logs=folder / "kafka-logs")
    )
    environment = {**os.environ, "LOG_DIR": str(folder), "KAFKA_HEAP_OPTS": "-Xmx256m"}
    storage = str(home / "bin" / "kafka-storage.sh")
    random_id = subprocess.run(
        (storage, "random-uuid"), env=environment, capture_output=True, text=True, check=True
    ).stdout.strip()
    subprocess.run(
        (storage, "format", "--standalone", "-t", random_id, "-c", str(config)),
        env=environment,
        capture_output=True,
        check=True,
    )
    with (folder / "kafka.txt").open("wb") as log:
        server = subprocess.Popen(
            (str(home / "bin" / "kafka-server-start.sh"), str(config)),
            env=environment,
            stdout=log,
            stderr=log,
        )
    try:
        eventually(lambda: is_listening(broker), "Kafka never listened")
        bootstrap = f"127.0.0.1:{broker}"
        create = ("--create", "--topic", USAGE_TOPIC, "--partitions", "3")
        subprocess.run(
            (str(home / "bin" / "kafka-topics.sh"), "--bootstrap-server", bootstrap, *create),
            env=environment,
            capture_output=True,
            check=True,
        )
        yield bootstrap
    finally:
        server.terminate()
        server.wait()
