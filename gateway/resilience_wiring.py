"""The part of the composition root that is about failures: retries, fallbacks, kept answers."""

import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import SystemRandom
from typing import Final
from urllib.parse import urlsplit

from gateway.admission.quota_plan import PlanBook
from gateway.clock import Clock
from gateway.providers.provider import Api, Provider, provider_headers
from gateway.resilience.breaker import Breakers
from gateway.resilience.fallback import Fallbacks
from gateway.resilience.idempotency import Idempotency, IdempotencyLimits
from gateway.resilience.retries import Retries, RetryLimits
from gateway.resilience.retry_budget import RetryBudget
from gateway.routing.replica import Replica
from gateway.settings import ProviderAddress, Settings
from gateway.upstream.replica_client import ReplicaClient, Timeouts

_MAX_KEPT_ANSWERS: Final = 100_000  # under idempotency keys, whatever their size


@dataclass(frozen=True, slots=True)
class Resilience:
    retries: Retries
    idempotency: Idempotency


@asynccontextmanager
async def wire_resilience(
    settings: Settings, clock: Clock, plans: PlanBook
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
        yield Resilience(retries, _idempotency(settings, clock))
    finally:
        for provider in providers.values():
            await provider.replica.client.close()


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
