"""The part of the composition root that is about failures: retries, fallbacks, kept answers."""

import asyncio
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import SystemRandom
from typing import Final
from urllib.parse import urlsplit

from contracts import metrics as names
from gateway.admission.quota_plan import PlanBook
from gateway.admission.resp import RespClient
from gateway.clock import Clock
from gateway.metrics import Metrics
from gateway.providers.provider import Api, Provider, provider_headers
from gateway.resilience.breaker import Breakers
from gateway.resilience.fallback import Fallbacks
from gateway.resilience.idempotency import Idempotency, IdempotencyLimits
from gateway.resilience.retries import Retries, RetryLimits
from gateway.resilience.retry_budget import RetryBudget
from gateway.resp_address import RespAddress
from gateway.response_cache.response_cache import ResponseCache
from gateway.routing.replica import Replica
from gateway.settings import ProviderAddress, Settings
from gateway.upstream.replica_client import ReplicaClient, Timeouts

_MAX_KEPT_ANSWERS: Final = 100_000  # under idempotency keys, whatever their size


@dataclass(frozen=True, slots=True)
class Resilience:
    retries: Retries
    idempotency: Idempotency
    cache: ResponseCache


@asynccontextmanager
async def wire_resilience(
    settings: Settings, clock: Clock, plans: PlanBook, metrics: Metrics
) -> AsyncGenerator[Resilience]:
    providers = {address.name: _provider(settings, address) for address in settings.providers}
    limits = RetryLimits(
        max_retries=settings.max_retries,
        longest_wait_s=settings.retry_wait_s,
        request_timeout_s=settings.answer_timeout_s,
    )
    retries = Retries(
        limits,
        RetryBudget(settings.retry_budget_ratio),
        Breakers(clock.monotonic_s),
        SystemRandom().random,
        Fallbacks(plans, providers),
    )
    try:
        async with _store(settings) as store:
            resilience = Resilience(retries, _idempotency(settings, clock), ResponseCache(store))
            _tell(metrics, resilience)
            yield resilience
    finally:
        for provider in providers.values():
            await provider.replica.client.close()


def _tell(metrics: Metrics, resilience: Resilience) -> None:
    retries, cache = resilience.retries, resilience.cache
    metrics.read_from(
        names.GATEWAY_RETRIES,
        lambda: {
            (("outcome", "made"),): retries.budget.num_withdrawn,
            (("outcome", "over_budget"),): retries.budget.num_refused,
        },
    )
    metrics.read_from(names.GATEWAY_BREAKER_OPENINGS, lambda: {(): retries.breakers.num_openings})
    metrics.read_from(
        names.GATEWAY_KNOWN_ANSWERS,
        lambda: {
            (("how", "hit"),): cache.num_hits,
            (("how", "miss"),): cache.num_misses,
            (("how", "shared"),): cache.num_shared,
            (("how", "replayed"),): resilience.idempotency.num_replays,
        },
    )


@asynccontextmanager
async def _store(settings: Settings) -> AsyncGenerator[RespClient | None]:
    if settings.cache_url is None:
        yield None
        return
    address = RespAddress.parse(settings.cache_url.get_secret_value())
    client = RespClient(address, settings.cache_call_deadline_s, name="response cache")
    async with asyncio.TaskGroup() as group:
        running = group.create_task(client.run())
        yield client
        running.cancel()


def _idempotency(settings: Settings, clock: Clock) -> Idempotency:
    limits = IdempotencyLimits(
        kept_s=settings.idempotency_kept_s,
        max_kept=_MAX_KEPT_ANSWERS,
        max_kept_bytes=settings.idempotency_max_bytes,
        answer_timeout_s=settings.answer_timeout_s,
    )
    return Idempotency(limits, clock.monotonic_s)


def _provider(settings: Settings, address: ProviderAddress) -> Provider:
    timeouts = Timeouts(
        connect_s=settings.connect_timeout_s,
        head_s=settings.head_timeout_s,
        idle_s=settings.idle_timeout_s,
        keep_alive_s=settings.upstream_keep_alive_s,
    )
    url = urlsplit(address.url)
    tls = ssl.create_default_context() if url.scheme == "https" else None
    api = Api(address.api)
    client = ReplicaClient(address.name, address.url, timeouts, tls)
    headers = provider_headers(api, address.api_key.get_secret_value())
    return Provider(api, Replica(client), url.path.rstrip("/"), headers)
