"""The composition root: opens every client, wires every part, and closes them in reverse."""

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI

from gateway.access_log import AccessLog
from gateway.admission.redis_limiter import RedisLimiter, preload_commands
from gateway.admission.resp import RespAddress, RespClient
from gateway.api.control_plane import control_plane
from gateway.api.health import health_router
from gateway.api.models import models_router
from gateway.auth import Authenticator
from gateway.clock import SYSTEM_CLOCK, Clock, IdMaker
from gateway.metering import EventSource
from gateway.metrics import Metrics
from gateway.outbox.spool import Spool
from gateway.pipeline import Pipeline, Stages
from gateway.policies import PolicyStore
from gateway.relay import Fleet, RelayLimits
from gateway.routing.filters.ready import Ready
from gateway.routing.filters.serves_model import ServesModel
from gateway.routing.pickers.best_score import BestScore
from gateway.routing.pool import ReplicaPool
from gateway.routing.profile import RoutingProfile
from gateway.routing.ring import PrefixRing
from gateway.routing.scorers.prefix_affinity import PrefixAffinityScorer
from gateway.settings import Settings
from gateway.settlement import SettlementDesk
from gateway.upstream.replica_client import ReplicaClient, Timeouts

logger = logging.getLogger(__name__)

_CLOSE_S = 5.0  # for the last settlements and events, after the last request


@dataclass(frozen=True, slots=True)
class Gateway:
    """The running parts that the server needs to know."""

    control_plane: FastAPI
    pipeline: Pipeline
    readiness: "Readiness"


class Readiness:
    """Whether new work should come here, and if not, why."""

    def __init__(
        self, policies: PolicyStore, pool: ReplicaPool, limiter: RedisLimiter, spool: Spool
    ) -> None:
        self._policies = policies
        self._pool = pool
        self._limiter = limiter
        self._spool = spool
        self.is_draining = False

    def reasons_not_ready(self) -> Sequence[str]:
        checks = {
            "the gateway is draining": self.is_draining,
            "no policy is loaded": self._policies.current is None,
            "no replica is ready": self._pool.num_ready == 0,
            "the quota store is not reachable": not self._limiter.is_reachable,
            "the spool cannot be written": self._spool.is_failing,
        }
        return [reason for reason, is_true in checks.items() if is_true]


@asynccontextmanager
async def create_app(settings: Settings, clock: Clock = SYSTEM_CLOCK) -> AsyncGenerator[Gateway]:
    """Everything runs inside; on leaving, open requests are settled and the spool is flushed."""
    ids = IdMaker(clock, random.SystemRandom().getrandbits)
    pepper = settings.key_pepper.get_secret_value().encode()
    policies = PolicyStore(settings.policy_file, pepper)
    policies.refresh()
    quota = RespClient(
        RespAddress.parse(settings.quota_url), settings.quota_call_deadline_s, preload_commands()
    )
    limiter = RedisLimiter(quota)
    pool = _open_pool(settings)
    boot_id = ids.boot_id()
    spool = Spool(settings.spool_dir, boot_id, settings.spool_segment_bytes)
    spool.start()
    metrics = Metrics()
    authenticator = Authenticator(policies, pepper)
    readiness = Readiness(policies, pool, limiter, spool)
    pipeline = Pipeline(
        Stages(
            authenticator=authenticator,
            limiter=limiter,
            fleet=_fleet(settings, pool, clock),
            desk=SettlementDesk(
                limiter=limiter,
                spool=spool,
                source=EventSource(settings.gateway_id, boot_id, clock),
                commit_hold_s=settings.spool_hold_s,
                settle_hold_s=settings.quota_call_deadline_s,
            ),
            access_log=AccessLog(metrics, clock),
            clock=clock,
            ids=ids,
        )
    )
    routers = [
        models_router(authenticator, pool),
        health_router(
            readiness.reasons_not_ready,
            lambda: metrics.render(num_spooled=spool.num_committed),
        ),
    ]
    async with _background(
        policies.watch(settings.policy_poll_interval_s),
        quota.run(),
        limiter.run(),
        pool.watch(settings.poll_interval_s),
    ):
        yield Gateway(control_plane(routers), pipeline, readiness)
        await pipeline.stop(_CLOSE_S)
        num_unsettled = await limiter.flush(_CLOSE_S)
        if num_unsettled:
            logger.error("reservations left unsettled", extra={"num_events": num_unsettled})
    await spool.stop(_CLOSE_S)
    await pool.close()


def _open_pool(settings: Settings) -> ReplicaPool:
    timeouts = Timeouts(
        settings.connect_timeout_s, settings.head_timeout_s, settings.idle_timeout_s
    )
    clients = [ReplicaClient(replica.name, replica.url, timeouts) for replica in settings.replicas]
    return ReplicaPool(clients, settings.model_aliases, settings.poll_timeout_s)


def _fleet(settings: Settings, pool: ReplicaPool, clock: Clock) -> Fleet:
    profile = RoutingProfile(
        filters=[ServesModel(), Ready()],
        scorers=[(PrefixAffinityScorer(PrefixRing()), 1.0)],
        picker=BestScore(),
    )
    limits = RelayLimits(
        max_answer_bytes=settings.max_answer_bytes,
        max_event_bytes=settings.max_event_bytes,
        abort_timeout_s=settings.abort_timeout_s,
    )
    return Fleet(pool, profile, limits, clock)


@asynccontextmanager
async def _background(*loops: Coroutine[Any, Any, None]) -> AsyncGenerator[None]:
    """Runs the loops beside the body.  One that fails takes the gateway down."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(loop) for loop in loops]
        yield
        for task in tasks:
            task.cancel()
