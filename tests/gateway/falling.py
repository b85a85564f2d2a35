"""A gateway whose policy has a fallback chain, and those who may serve in its replica's place."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from contracts.fallbacks import FallbackChain, FallbackStep
from contracts.response_cache import CachePolicy
from contracts.usage import UsageEvent
from gateway.app import Gateway
from gateway.settings import ProviderAddress, ReplicaAddress
from tests.gateway.processes import Policies, Valkey
from tests.gateway.scene import Scene, running
from tests.gateway.test_anthropic import STREAM
from tests.gateway.upstream_server import (
    MODEL,
    Generation,
    Upstream,
)

KEY = "sk-theirs-0123456789"
SMALL = FallbackStep(model="small")
OPENAI = FallbackStep(model="gpt", provider="openai")
ANTHROPIC = FallbackStep(model="claude", provider="anthropic")


async def refuse(generation: Generation) -> None:
    await generation.answer(503, b"{}")


async def limited(generation: Generation) -> None:
    await generation.send(
        b"HTTP/1.1 429 X\r\nretry-after: 30\r\ncontent-type: application/json\r\n"
        b"content-length: 2\r\n\r\n{}"
    )


async def hang(generation: Generation) -> None:
    await generation.is_stopped.wait()


async def break_down(generation: Generation) -> None:
    await generation.answer(500, b"{}")


async def claude(generation: Generation) -> None:
    if generation.received.document.get("stream"):
        await generation.start_stream()
        await generation.chunk(STREAM)
        await generation.send(b"0\r\n\r\n")
        return
    message = {
        "id": "msg_1",
        "type": "message",
        "model": "claude",
        "content": [{"type": "text", "text": "hello"}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 9, "output_tokens": 2},
    }
    await generation.answer(200, json.dumps(message).encode())


@dataclass(frozen=True)
class Fallen:
    """What became of one request whose own replica is of no use."""

    status: int
    head: str
    body: bytes
    events: list[UsageEvent]

    @property
    def document(self) -> Any:
        return json.loads(self.body)

    @property
    def retry_after_s(self) -> int | None:
        """What the client was told."""
        lines = [line for line in self.head.splitlines() if line.startswith("retry-after: ")]
        return int(lines[0].split()[1]) if lines else None

    @property
    def payloads(self) -> list[str]:
        lines = [line for line in self.body.decode().splitlines() if line.startswith("data: ")]
        return [line.removeprefix("data: ") for line in lines]


@dataclass(frozen=True)
class Fall:
    gateway: Gateway
    scene: Scene
    upstream: Upstream
    others: dict[str, Upstream]

    async def ask(self, **members: object) -> Fallen:
        before = len(self.scene.events())
        self.scene.transport.written = b""
        await self.gateway.pipeline.serve(self.scene.exchange(**members))
        head, _, body = self.scene.transport.written.partition(b"\r\n\r\n")
        events = self.scene.events()[before:]
        return Fallen(int(head.split()[1]), head.decode(), body, events)


Falls = Callable[..., Any]  # of steps


async def knows(gateway: Gateway, model: str) -> None:
    async with asyncio.timeout(60):
        while model not in gateway.pipeline.ready_models():  # noqa: ASYNC110  # polls, as probes do
            await asyncio.sleep(0.005)


def falls_of(
    tmp_path: Path,
    valkey: Valkey,
    policies: Policies,
    upstream: Upstream,
    others: dict[str, Upstream],
) -> Falls:
    """A gateway whose policy has such a chain, before a replica that says it is full."""
    for other in others.values():
        other.reset()
    others["anthropic"].behaviour = claude
    upstream.behaviour = refuse

    @asynccontextmanager
    async def fall(
        *steps: FallbackStep,
        cache: CachePolicy | None = None,
        settings: Mapping[str, Any] = MappingProxyType({"max_retries": 0}),
        **chain: Any,
    ) -> AsyncIterator[Fall]:
        name = f"fall-{abs(hash((tmp_path, steps))) % 10**9}"
        chains = (FallbackChain(model=MODEL, steps=steps, **chain),)
        policies.add(name, f"sk-{name}", fallbacks=chains, cache=cache)
        providers = tuple(
            ProviderAddress(name=api, url=f"{others[api].url}/base", api=api, api_key=KEY)
            for api in ("openai", "anthropic")
        )
        replicas = (
            ReplicaAddress(name="replica-0", url=upstream.url),
            ReplicaAddress(name="small-0", url=others["small"].url),
        )
        async with running(
            tmp_path,
            valkey,
            policies,
            upstream,
            replicas=replicas,
            providers=providers,
            poll_interval_s=0.05,
            cache_url=valkey.url,
            **settings,
        ) as gateway:
            scene = Scene(gateway, tmp_path / "spool", name, valkey)
            for model in (MODEL, "small"):
                await knows(gateway, model)
            yield Fall(gateway, scene, upstream, others)

    return fall
