"""Settled once, however a request ends: here from inside, where the end can be timed."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from contracts.spool import unframe
from contracts.usage import Outcome, UsageEvent, decode_usage_event
from gateway.api.context import Endpoint
from gateway.app import Gateway, create_app
from gateway.exchange import Exchange
from gateway.settings import ReplicaAddress, Settings
from tests.gateway.http_client import chat, request_bytes
from tests.gateway.processes import PEPPER, Policies, Valkey, eventually
from tests.gateway.upstream_server import Upstream, words


class RecordedTransport(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.is_closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def close(self) -> None:
        self.is_closed = True


class Scene:
    """A gateway in this process, and one request to it."""

    def __init__(self, gateway: Gateway, spool_dir: Path, tenant: str, valkey: Valkey) -> None:
        self.gateway = gateway
        self._spool_dir = spool_dir
        self._tenant = tenant
        self._valkey = valkey
        self.transport = RecordedTransport()

    def exchange(self, **members: object) -> Exchange:
        exchange = Exchange(
            self.transport,
            Endpoint.CHAT_COMPLETIONS,
            [(b"authorization", f"Bearer sk-{self._tenant}".encode())],
            keep_alive=True,
            is_chunking_understood=True,
            on_complete=lambda: None,
        )
        exchange.body = request_bytes(chat(**members), None).partition(b"\r\n\r\n")[2]
        return exchange

    def events(self) -> list[UsageEvent]:
        lines = [
            line
            for path in sorted(self._spool_dir.glob("*.spool"))
            for line in path.read_bytes().splitlines(keepends=True)
        ]
        return [decode_usage_event(unframe(line)) for line in lines]

    async def only_event(self) -> UsageEvent:
        await asyncio.to_thread(eventually, lambda: bool(self.events()), "an event")
        (event,) = self.events()
        expected = {"requests": 1, "tokens": event.total_tokens}
        await asyncio.to_thread(
            eventually, lambda: self._valkey.settled(self._tenant) == expected, "the settlement"
        )
        assert self._valkey.num_open_reservations(self._tenant) == 0
        return event


@pytest.fixture
async def scene(
    tmp_path: Path, valkey: Valkey, policies: Policies, upstream: Upstream, request: object
) -> AsyncIterator[Scene]:
    tenant = f"scene-{tmp_path.name[-40:].strip('_').lower()}".rstrip("_-")
    policies.add(tenant, f"sk-{tenant}")
    async with running(tmp_path, valkey, policies, upstream) as gateway:
        yield Scene(gateway, tmp_path / "spool", tenant, valkey)
    policies.remove(tenant)


@asynccontextmanager
async def running(
    folder: Path, valkey: Valkey, policies: Policies, upstream: Upstream
) -> AsyncIterator[Gateway]:
    settings = Settings(
        replicas=(ReplicaAddress(name="replica-0", url=upstream.url),),
        policy_file=policies.path,
        key_pepper=PEPPER,
        quota_url=valkey.url,
        spool_dir=folder / "spool",
    )
    async with create_app(settings) as gateway:
        while gateway.readiness.reasons_not_ready():  # noqa: ASYNC110  # polls, as probes do
            await asyncio.sleep(0.005)
        yield gateway


async def begun(upstream: Upstream, num_tokens: int) -> None:
    def has_begun() -> bool:
        return any(g.completion_tokens >= num_tokens for g in upstream.generations)

    await asyncio.to_thread(eventually, has_begun, "the generation")


async def test_a_cancelled_task_settles_once(scene: Scene, upstream: Upstream) -> None:
    upstream.behaviour = words(1_000, pause_s=0.01)
    task = asyncio.create_task(scene.gateway.pipeline.serve(scene.exchange(stream=True)))
    await begun(upstream, 3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    event = await scene.only_event()
    assert event.outcome is Outcome.CANCELLED
    assert event.output_text_tokens > 0
    await asyncio.to_thread(eventually, lambda: upstream.num_hung_up == 1, "the hanging up")


async def test_a_task_cancelled_while_it_asks_for_the_count_settles_once(
    scene: Scene, upstream: Upstream
) -> None:
    upstream.behaviour = words(1_000, pause_s=0.01)
    exchange = scene.exchange(stream=True)
    task = asyncio.create_task(scene.gateway.pipeline.serve(exchange))
    await begun(upstream, 3)
    exchange.client_lost()
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert (await scene.only_event()).output_text_tokens > 0


async def test_a_client_that_leaves_during_admission_costs_nothing(
    scene: Scene, upstream: Upstream
) -> None:
    exchange = scene.exchange(stream=True)
    task = asyncio.create_task(scene.gateway.pipeline.serve(exchange))
    await asyncio.sleep(0)  # the reservation is on its way
    exchange.client_lost()
    await task
    event = await scene.only_event()
    assert (event.outcome, event.total_tokens) == (Outcome.CLIENT_DISCONNECTED, 0)
    assert event.replica is None
    assert upstream.generations == []


async def test_a_client_that_leaves_while_paused_is_noticed(
    scene: Scene, upstream: Upstream
) -> None:
    upstream.behaviour = words(1_000, pause_s=0.01)
    exchange = scene.exchange(stream=True)
    exchange.is_write_paused = True
    task = asyncio.create_task(scene.gateway.pipeline.serve(exchange))
    await begun(upstream, 3)
    exchange.client_lost()
    await task
    event = await scene.only_event()
    assert event.outcome is Outcome.CLIENT_DISCONNECTED
    assert event.output_text_tokens == upstream.generations[0].completion_tokens


async def test_the_end_is_held_until_the_event_is_on_disk(scene: Scene, upstream: Upstream) -> None:
    """Whenever the last byte is out, the event can be read."""
    exchange = scene.exchange(stream=True)
    task = asyncio.create_task(scene.gateway.pipeline.serve(exchange))
    while b"[DONE]" not in scene.transport.written:
        assert scene.events() == [] or len(scene.events()) == 1
        await asyncio.sleep(0)
    assert len(scene.events()) == 1
    await task
