"""A gateway in the test's own process: for what must be timed, or seen from inside."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from contracts.usage import UsageEvent
from gateway.api.context import Operation
from gateway.app import Gateway, create_app
from gateway.clock import SYSTEM_CLOCK, Clock
from gateway.exchange import Exchange
from gateway.request_head import request_head
from gateway.settings import ReplicaAddress, Settings
from tests.gateway.http_client import chat, request_bytes
from tests.gateway.processes import PEPPER, Policies, Valkey, events_in
from tests.gateway.upstream_server import Upstream
from tests.support.waiting import PATIENCE_S, eventually


class Hand:
    """Of a clock that stands still: whatever is open for so many seconds stays open."""

    def __init__(self) -> None:
        self.monotonic_s = time.monotonic()
        self.clock = Clock(time.time, lambda: self.monotonic_s)


class RecordedTransport(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.is_closed = False
        self.num_unsent_bytes = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = True

    def get_write_buffer_size(self) -> int:
        return self.num_unsent_bytes


class Scene:
    """A gateway in this process, and one request to it."""

    def __init__(self, gateway: Gateway, spool_dir: Path, tenant: str, valkey: Valkey) -> None:
        self.gateway = gateway
        self._spool_dir = spool_dir
        self._tenant = tenant
        self._valkey = valkey
        self.transport = RecordedTransport()

    def exchange(self, *headers: tuple[bytes, bytes], **members: object) -> Exchange:
        exchange = Exchange(
            self.transport,
            request_head(
                Operation.CHAT_COMPLETIONS,
                [(b"authorization", f"Bearer sk-{self._tenant}".encode()), *headers],
            ),
            on_complete=lambda: None,
        )
        exchange.body = request_bytes(chat(**members), None).partition(b"\r\n\r\n")[2]
        return exchange

    def events(self) -> list[UsageEvent]:
        """Of its tenant."""
        return [event for event in events_in(self._spool_dir) if event.tenant_id == self._tenant]

    async def only_event(self) -> UsageEvent:
        await asyncio.to_thread(eventually, lambda: bool(self.events()), "an event")
        (event,) = self.events()
        expected = {"requests": 1, "tokens": event.total_tokens}
        await asyncio.to_thread(
            eventually, lambda: self._valkey.settled(self._tenant) == expected, "the settlement"
        )
        assert self._valkey.num_open_reservations(self._tenant) == 0
        return event


@asynccontextmanager
async def running(
    folder: Path,
    valkey: Valkey,
    policies: Policies,
    upstream: Upstream | None = None,
    clock: Clock = SYSTEM_CLOCK,
    **others: Any,
) -> AsyncIterator[Gateway]:
    """``others``: more settings.  Without an upstream, its replicas are among them."""
    if upstream is not None:
        others.setdefault("replicas", (ReplicaAddress(name="replica-0", url=upstream.url),))
    settings = Settings(
        policy_file=policies.path,
        key_pepper=PEPPER,
        quota_url=valkey.url,
        quota_call_deadline_s=10.0,
        spool_dir=folder / "spool",
        **others,
    )
    async with create_app(settings, lambda _: None, clock) as gateway:
        await until(lambda: not gateway.readiness.reasons_not_ready())
        yield gateway


async def begun(upstream: Upstream, num_tokens: int) -> None:
    def has_begun() -> bool:
        return any(g.completion_tokens >= num_tokens for g in upstream.generations)

    await asyncio.to_thread(eventually, has_begun, "the generation")


async def until(is_true: Callable[[], bool]) -> None:
    """Lets this process's own event loop run for as long as it takes."""
    async with asyncio.timeout(PATIENCE_S):
        while not is_true():  # noqa: ASYNC110  # of many facts, few have an event
            await asyncio.sleep(0.001)
