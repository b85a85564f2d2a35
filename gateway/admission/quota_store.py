"""The quota store as the limiter sees it: one server, or a cluster whose slots have homes.

Which of the two it is the store itself tells.  In a cluster all keys of a call share one slot,
because they share their tag; redirections are followed, and a failed call asks for a new map.
"""

import asyncio
import contextlib
import re
from binascii import crc_hqx
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from gateway.admission.resp import RespClient, error_text, pack
from gateway.completion import Completion
from gateway.errors import QuotaRefused, QuotaUnavailable
from gateway.resp_address import RespAddress

_NUM_SLOTS: Final = 16_384
_MAX_HOPS: Final = 5
_CONNECT_S: Final = 1.0
_MAP_PAUSE_S: Final = 0.1  # between two looks at the map
_REDIRECTION = re.compile(r"(MOVED|ASK) (\d+) (.*):(\d+)", re.ASCII)
_ASKING, _CLUSTER_SLOTS = pack("ASKING"), pack("CLUSTER", "SLOTS")


def slot_of(tag: str) -> int:
    """Of all keys that hold ``{tag}`` (Redis Cluster specification, "Hash tags")."""
    return crc_hqx(tag.encode(), 0) % _NUM_SLOTS


class QuotaStore:
    def __init__(
        self,
        address: RespAddress,
        call_deadline_s: float,
        preload: Sequence[bytes] = (),
        *,
        name: str = "quota store",
    ) -> None:
        """``preload``: commands sent on every new connection before any other.

        ``name``: what the log calls it.
        """
        self._address = address
        self._call_deadline_s = call_deadline_s
        self._preload = preload
        self._name = name
        self._seed = RespClient(address, call_deadline_s, preload, name=name)
        self._nodes: dict[RespAddress, RespClient] = {address: self._seed}
        self._tasks: dict[RespAddress, asyncio.Task[None]] = {}
        self._homes: list[RespClient] = []  # by slot; empty: the seed is the only one
        self._primaries = frozenset([self._seed])
        self._is_mapped = False
        self._wants_map = asyncio.Event()
        self._group: asyncio.TaskGroup | None = None

    @property
    def is_reachable(self) -> bool:
        return self._is_mapped and any(n.connected.is_set() for n in self._nodes.values())

    @property
    def refusal(self) -> QuotaRefused | None:
        """What met whoever tried to connect, if it was not silence."""
        return self._seed.refusal

    @property
    def homes(self) -> frozenset[RespClient]:
        """The nodes that decide, each for its own slots."""
        return self._primaries

    def home_of(self, slot: int) -> RespClient:
        return self._homes[slot] if self._homes else self._seed

    def call(self, command: bytes, slot: int) -> Completion[object]:
        """As ``RespClient.call``."""
        if self._homes:
            reply: Completion[object] = Completion()
            self._send(self._homes[slot], command, reply, _MAX_HOPS)
            return reply
        return self._seed.call(command)

    def before_flush(self, callback: Callable[[], None]) -> None:
        """Calls it once, before the next writes."""
        if self._homes:
            asyncio.get_running_loop().call_soon(callback)
        else:
            self._seed.before_flush(callback)

    async def run(self) -> None:
        """Runs until cancelled."""
        async with asyncio.TaskGroup() as self._group:
            self._tasks[self._address] = self._group.create_task(self._seed.run())
            while True:
                await self._learn_map()
                await self._wants_map.wait()
                await asyncio.sleep(_MAP_PAUSE_S)
                self._wants_map.clear()

    # Redirections

    def _send(
        self, node: RespClient, command: bytes, reply: Completion[object], hops_left: int
    ) -> None:
        answer = node.call(command)
        answer.then(lambda: self._on_answer(answer, command, reply, hops_left))

    def _on_answer(
        self, answer: Completion[object], command: bytes, reply: Completion[object], hops_left: int
    ) -> None:
        failure = answer.exception()
        if failure is not None:
            self._wants_map.set()
            reply.fail(failure)
            return
        result = answer.result()
        error = error_text(result)
        moved = None if error is None else _REDIRECTION.match(error)
        if moved is None or hops_left == 0:
            reply.resolve(result)
            return
        kind, slot, host, port = moved.groups()
        node = self._node(host, int(port))
        if kind == "MOVED":
            self._homes[int(slot)] = node
            self._wants_map.set()
        self._follow(node, command, reply, hops_left - 1, is_asking=kind == "ASK")

    def _follow(
        self,
        node: RespClient,
        command: bytes,
        reply: Completion[object],
        hops_left: int,
        *,
        is_asking: bool,
    ) -> None:
        def send() -> None:
            if is_asking:
                node.call(_ASKING)
            self._send(node, command, reply, hops_left)

        if node.connected.is_set() or self._group is None:
            send()
        else:
            self._group.create_task(self._when_connected(node, send))

    async def _when_connected(self, node: RespClient, send: Callable[[], None]) -> None:
        with contextlib.suppress(TimeoutError):  # then the call fails at once
            async with asyncio.timeout(self._call_deadline_s):
                await node.connected.wait()
        send()

    # The map

    async def _learn_map(self) -> None:
        """From the first node that gives one; without any, later."""
        await self._some_connection()
        for node in [n for n in self._nodes.values() if n.connected.is_set()]:
            try:
                answer = await node.call(_CLUSTER_SLOTS)
            except QuotaUnavailable:
                continue
            ranges = answer if isinstance(answer, list) else []  # an error: it is no cluster
            self._adopt(ranges)
            await self._let_connect()
            self._is_mapped = True
            return
        self._wants_map.set()

    async def _some_connection(self) -> None:
        while not any(node.connected.is_set() for node in self._nodes.values()):
            waits = [asyncio.create_task(n.connected.wait()) for n in self._nodes.values()]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()

    async def _let_connect(self) -> None:
        """The new nodes; one that is away is not waited for."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CONNECT_S):
                for node in list(self._nodes.values()):
                    await node.connected.wait()

    def _adopt(self, ranges: list[list[object]]) -> None:
        homes = [self._seed] * _NUM_SLOTS if ranges else []
        for first, last, host, port in _primaries(ranges):
            homes[first : last + 1] = [self._node(host, port)] * (last + 1 - first)
        self._homes = homes
        self._primaries = frozenset(homes or [self._seed])
        kept = {self._seed, *self._primaries}
        for address in [a for a, n in self._nodes.items() if n not in kept]:
            del self._nodes[address]
            self._tasks.pop(address).cancel()

    def _node(self, host: str, port: int) -> RespClient:
        address = replace(self._address, path=None, host=host or self._address.host, port=port)
        node = self._nodes.get(address)
        if node is None:
            node = RespClient(address, self._call_deadline_s, self._preload, name=self._name)
            self._nodes[address] = node
            assert self._group is not None, "only a running store learns of nodes"
            self._tasks[address] = self._group.create_task(node.run())
        return node


def _primaries(ranges: list[list[object]]) -> Iterator[tuple[int, int, str, int]]:
    """First and last slot, host, port.  CLUSTER SLOTS: [first, last, [host, port, ...], ...]."""
    for first, last, primary, *_ in ranges:
        assert isinstance(first, int)
        assert isinstance(last, int)
        assert isinstance(primary, list)
        host, port = primary[0], primary[1]
        yield first, last, host.decode() if isinstance(host, bytes) else "", port
