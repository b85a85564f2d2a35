"""A gateway whose pool has a server of another owner beside its replica."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from contracts.hedging import HedgePolicy
from gateway.clock import Clock
from gateway.settings import ProviderAddress
from tests.gateway.falling import KEY, Fall
from tests.gateway.processes import Policies, Valkey
from tests.gateway.scene import Hand, Scene, running, until
from tests.gateway.upstream_server import MODEL, Generation, Upstream

Members = Callable[..., Any]


def members_of(
    tmp_path: Path,
    valkey: Valkey,
    policies: Policies,
    upstream: Upstream,
    others: dict[str, Upstream],
) -> Members:
    """A gateway with a replica, and beside it a provider that does two thirds of its work."""

    @asynccontextmanager
    async def member(
        *,
        clock: Clock | None = None,  # else it stands still
        permitted: tuple[str, ...] = ("openai",),
        url: str = "",
        hedging: HedgePolicy | None = None,
        **more: Any,
    ) -> AsyncIterator[Fall]:
        others["openai"].reset()
        name = f"member-{abs(hash(tmp_path)) % 10**9}"
        policies.add(name, f"sk-{name}", providers=permitted, hedging=hedging)
        provider = ProviderAddress(
            name="openai",
            url=url or f"{others['openai'].url}/base",
            models={MODEL: "gpt"},
            weight=0.7,
            api_key=SecretStr(KEY),
        )
        settings: dict[str, Any] = {"poll_interval_s": 0.05} | more
        settings["clock"] = Hand().clock if clock is None else clock
        async with running(
            tmp_path,
            valkey,
            policies,
            upstream,
            providers=(provider,),
            **settings,
        ) as gateway:
            pool = gateway.pipeline._stages.fleet.pool
            await until(lambda: pool["replica-0"].is_ready)
            yield Fall(gateway, Scene(gateway, tmp_path / "spool", name, valkey), upstream, others)

    return member


@asynccontextmanager
async def busy(fall: Fall) -> AsyncIterator[None]:
    """Its replica has a request that does not end before the block does."""
    fall.upstream.behaviour = hold
    exchange = fall.scene.exchange(max_tokens=4_000)
    fall.gateway.pipeline.start(exchange)
    await until(lambda: len(fall.upstream.generations) == 1)
    try:
        yield
    finally:
        exchange.client_lost()
        await fall.gateway.pipeline.until_idle()


async def hold(generation: Generation) -> None:
    await generation.is_stopped.wait()
