"""What kwok's pods would run: an engine's metrics and its cordon, at each pod's address.

Requests arrive at a rate, spread over the pods that are ready and not cordoned, and take a second;
a pod can hold longer streams.  Whoever is deleted while it has any is noted: a stream was cut.
"""

import asyncio
import time
from contextlib import closing, suppress
from dataclasses import dataclass, field

import msgspec

from autoscaler.kubernetes import paths
from autoscaler.kubernetes.api import KubernetesApi
from autoscaler.kubernetes.objects import Listed, Pod
from contracts.replica_api import CORDON_PATH
from tests.support.ports import free_port

LOOK_S = 0.2


@dataclass
class Engine:
    name: str
    num_finished: float = 0.0
    num_running: int = 0
    num_streams: int = 0  # that go on until a test ends them
    is_cordoned: bool = False
    is_ready: bool = False
    is_leaving: bool = False

    @property
    def num_in_flight(self) -> int:
        return self.num_running + self.num_streams

    def page(self) -> str:
        return (
            f"vllm:num_requests_running {self.num_in_flight}\n"
            "vllm:num_requests_waiting 0\n"
            "vllm:kv_cache_usage_perc 0.1\n"
            "vllm:prompt_tokens_total 0\n"
            f"vllm:generation_tokens_total {100 * self.num_finished}\n"
            f"vllm:request_success_total {self.num_finished}\n"
        )


@dataclass
class PodFleet:
    api: KubernetesApi
    namespace: str
    label_selector: str = ""  # of the pods that are engines; empty: all are
    rate_per_s: float = 0.0
    num_streams: int = 0  # of each engine from when it is first seen
    port: int = field(default_factory=free_port)
    engines: dict[str, Engine] = field(default_factory=dict)  # by address
    cut: list[str] = field(default_factory=list)
    cordons: list[str] = field(default_factory=list)
    most_at_once: int = 0
    _servers: list[asyncio.Server] = field(default_factory=list)
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)

    async def run(self) -> None:
        """Until cancelled."""
        before_s = time.monotonic()
        try:
            while True:
                with suppress(Exception):  # the API server may be down, which is a test's business
                    await self._look()
                now_s = time.monotonic()
                self._serve(now_s - before_s)
                before_s = now_s
                await asyncio.sleep(LOOK_S)
        finally:
            await self._close()

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        await asyncio.sleep(0)  # whoever has just been let in is known then
        for writer in self._writers:
            writer.close()
        await asyncio.sleep(0)  # closed then

    def stream(self, num_streams: int) -> None:
        """So many at each engine, also at those that are still to come."""
        self.num_streams = num_streams
        for engine in self.engines.values():
            engine.num_streams = num_streams

    def named(self, name: str) -> Engine:
        return next(e for e in self.engines.values() if e.name == name)

    async def _look(self) -> None:
        body = await self.api.get(paths.pods(self.namespace), labelSelector=self.label_selector)
        pods = msgspec.json.decode(body, type=Listed[Pod]).items
        here = {pod.status.pod_ip: pod for pod in pods if pod.status.pod_ip}
        self.most_at_once = max(self.most_at_once, len(pods))
        for ip, pod in here.items():
            if ip not in self.engines or self.engines[ip].name != pod.metadata.name:
                await self._begin(ip, pod.metadata.name)
            engine = self.engines[ip]
            ready = pod.status.condition("Ready")
            engine.is_ready = ready is not None and ready.status == "True"
            if pod.metadata.deletion_timestamp is not None and not engine.is_leaving:
                engine.is_leaving = True
                if engine.num_in_flight > 0:
                    self.cut.append(engine.name)
        for ip in self.engines.keys() - here.keys():
            self.engines[ip].is_ready = False

    def _serve(self, elapsed_s: float) -> None:
        takers = [
            e
            for e in self.engines.values()
            if e.is_ready and not e.is_cordoned and not e.is_leaving
        ]
        for engine in self.engines.values():
            if engine not in takers:
                engine.num_running = 0
        for i, engine in enumerate(takers):
            engine.num_finished += self.rate_per_s * elapsed_s / len(takers)
            whole, rest = divmod(round(self.rate_per_s), len(takers))
            engine.num_running = whole + (i < rest)

    async def _begin(self, ip: str, name: str) -> None:
        is_known = ip in self.engines
        self.engines[ip] = Engine(name, num_streams=self.num_streams)
        if is_known:
            return

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._writers.add(writer)
            with closing(writer), suppress(asyncio.IncompleteReadError, OSError):  # who asked died
                head = await reader.readuntil(b"\r\n\r\n")
                method, path, *_ = head.decode().split()
                page = self._answer(ip, method, path)
                writer.write(b"HTTP/1.0 200 OK\r\n\r\n" + page.encode())
                await writer.drain()
            self._writers.discard(writer)

        # It serves once it is known: cancelled in between, it would stay open.
        server = await asyncio.start_server(answer, ip, self.port, start_serving=False)
        self._servers.append(server)
        await server.start_serving()

    def _answer(self, ip: str, method: str, path: str) -> str:
        engine = self.engines[ip]
        if path == CORDON_PATH:
            engine.is_cordoned = method == "PUT"
            self.cordons.append(f"{method} {engine.name}")
        return engine.page()
