"""The part of the composition root that is about failures: retries, fallbacks, kept answers."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import SystemRandom
from typing import Final

from contracts import metrics as names
from gateway.admission.resp import RespClient
from gateway.clock import Clock, IdMaker
from gateway.metrics import Metrics
from gateway.resilience.breaker import Breakers
from gateway.resilience.fallback import Fallbacks
from gateway.resilience.hedging import Hedging
from gateway.resilience.idempotency import Idempotency, IdempotencyLimits
from gateway.resilience.retries import Retries, RetryLimits
from gateway.resilience.retry_budget import RetryBudget
from gateway.resilience.shared_keys import SharedKeyLimits, SharedKeys
from gateway.resp_address import RespAddress, StoreTls
from gateway.response_cache.response_cache import ResponseCache
from gateway.settings import Settings

_MAX_KEPT_ANSWERS: Final = 100_000  # under idempotency keys, whatever their size
_MAX_SHARED_BYTES: Final = 1024 * 1024  # of one that other gateways can repeat
_KEY_LEASE_S: Final = 10.0  # then another gateway may answer what a dead one had begun


@dataclass(frozen=True, slots=True)
class Resilience:
    retries: Retries
    idempotency: Idempotency
    cache: ResponseCache


@asynccontextmanager
async def wire_resilience(
    settings: Settings,
    clock: Clock,
    ids: IdMaker,
    fallbacks: Fallbacks,
    breakers: Breakers,
    metrics: Metrics,
) -> AsyncGenerator[Resilience]:
    limits = RetryLimits(
        max_retries=settings.max_retries,
        longest_wait_s=settings.retry_wait_s,
        request_timeout_s=settings.answer_timeout_s,
    )
    retries = Retries(
        limits,
        RetryBudget(settings.retry_budget_ratio),
        breakers,
        SystemRandom().random,
        fallbacks,
        Hedging(RetryBudget(settings.retry_budget_ratio)),
    )
    deadlines_s = settings.cache_call_deadline_s, settings.idempotency_call_deadline_s
    async with (
        _store(settings, "response cache", deadlines_s[0]) as cache,
        _store(settings, "store of idempotency keys", deadlines_s[1]) as keys,
    ):
        idempotency = _idempotency(settings, clock, ids, keys)
        resilience = Resilience(retries, idempotency, ResponseCache(cache))
        _tell(metrics, resilience)
        yield resilience


def _tell(metrics: Metrics, resilience: Resilience) -> None:
    retries, cache = resilience.retries, resilience.cache
    metrics.read_from(
        names.GATEWAY_RETRIES,
        lambda: {
            (("outcome", "made"),): retries.budget.num_withdrawn,
            (("outcome", "over_budget"),): retries.budget.num_refused,
        },
    )
    metrics.read_from(
        names.GATEWAY_HEDGES,
        lambda: {
            (("outcome", "won"),): retries.hedging.num_won,
            (("outcome", "lost"),): retries.hedging.num_lost,
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
            (("how", "unshared"),): resilience.idempotency.num_unshared,
            (("how", "lost"),): resilience.idempotency.num_lost,
        },
    )


@asynccontextmanager
async def _store(
    settings: Settings, name: str, deadline_s: float
) -> AsyncGenerator[RespClient | None]:
    if settings.cache_url is None:
        yield None
        return
    address = RespAddress.parse(settings.cache_url.get_secret_value(), StoreTls.of(settings))
    client = RespClient(address, deadline_s, name=name)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(client.run())
        yield client
        running.cancel()


def _idempotency(
    settings: Settings, clock: Clock, ids: IdMaker, store: RespClient | None
) -> Idempotency:
    limits = IdempotencyLimits(
        kept_s=settings.idempotency_kept_s,
        max_kept=_MAX_KEPT_ANSWERS,
        max_kept_bytes=settings.idempotency_max_bytes,
        answer_timeout_s=settings.answer_timeout_s,
    )
    shared = None
    if store is not None:
        shared_limits = SharedKeyLimits(
            _KEY_LEASE_S, settings.idempotency_kept_s, _MAX_SHARED_BYTES
        )
        shared = SharedKeys(store, shared_limits, ids.request_id)
    return Idempotency(limits, clock.monotonic_s, shared)
