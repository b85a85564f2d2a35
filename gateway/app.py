"""The composition root: opens every client, wires every part, and closes them in reverse."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from fastapi import APIRouter, FastAPI

from gateway.access_log import AccessLog
from gateway.admission.cost import CostModel
from gateway.admission.local_shares import LocalShares
from gateway.admission.quota_plan import PlanBook
from gateway.admission.quota_scripts import greeting
from gateway.admission.quota_store import QuotaStore
from gateway.admission.redis_limiter import RedisLimiter
from gateway.api.control_plane import control_plane
from gateway.api.health import health_router
from gateway.api.models import models_router
from gateway.api.request_body import RequestReader
from gateway.budget_watch import BudgetWatch
from gateway.clock import SYSTEM_CLOCK, Clock, IdMaker, random_digits
from gateway.event_encoder import EventEncoder
from gateway.exact_counting import ExactCounting
from gateway.exchange import Exchange
from gateway.experience import Experience
from gateway.fleet import Fleet, Forecasting, RelayLimits
from gateway.metering import EventSource
from gateway.metrics import Metrics, QuotaStanding
from gateway.outbox.spool import Spool
from gateway.outbox_wiring import Life, Loop, owed_settlements, shipping
from gateway.pipeline import Pipeline
from gateway.policy_wiring import PolicyParts, wire_policies
from gateway.provider_wiring import members_of_pools, wire_providers
from gateway.providers.provider import Provider
from gateway.readiness import Readiness
from gateway.replica_wiring import Replicas, wire_replicas
from gateway.resilience.breaker import Breakers
from gateway.resilience.fallback import Fallbacks
from gateway.resilience_wiring import wire_resilience
from gateway.resp_address import RespAddress, StoreTls
from gateway.routing.pool import ReplicaPool
from gateway.settings import Settings
from gateway.settlement import SettlementDesk
from gateway.shared_turns import SharedTurns
from gateway.slices import Slices
from gateway.stages import Stages
from gateway.telemetry_wiring import wire_telemetry
from gateway.turnstile import Turnstile
from gateway.workers.place import Place
from gateway.workers.siblings import Siblings

_GATHER_S = 0.01  # of events nobody waits for: fewer, larger writes
_CLOSE_S = 5.0  # for the last settlements and events, after the last request


@dataclass(frozen=True, slots=True)
class Gateway:
    """The running parts that the server needs to know."""

    control_plane: FastAPI
    pipeline: Pipeline
    start: Callable[[Exchange], object]  # begins a request, in its turn
    readiness: Readiness
    make_request_id: Callable[[], str]


@dataclass(frozen=True, slots=True)
class _Parts:
    """What both planes share."""

    policies: PolicyParts
    quota: QuotaStore
    costs: CostModel
    exact: ExactCounting
    limiter: RedisLimiter
    fallbacks: Fallbacks
    breakers: Breakers
    replicas: Replicas
    fleet: Fleet
    turnstile: Turnstile
    spool: Spool
    metrics: Metrics
    budgets: BudgetWatch


@asynccontextmanager
async def create_app(
    settings: Settings,
    write_log: Callable[[bytes], None],
    clock: Clock = SYSTEM_CLOCK,
    place: Place | None = None,
) -> AsyncGenerator[Gateway]:
    """Everything runs inside; on leaving, open requests are settled and the spool is flushed.

    ``write_log`` takes whole lines of the access log; ``place`` is that among several workers.
    """
    ids = IdMaker(clock, random_digits)
    boot_id = ids.boot_id()
    telemetry, parts = wire_telemetry(settings, boot_id, clock), _parts(settings, boot_id, clock)
    access_log = AccessLog(parts.metrics, clock, write_log, telemetry.tracer)
    readiness = Readiness(parts.policies.live, parts.replicas.pool, parts.limiter, parts.spool)
    spooled = _spooled(settings, parts, Life(boot_id, clock, place))
    async with (
        _closing(parts.replicas.pool, parts.fallbacks.providers),
        _open(parts.spool),
        _background([*telemetry.loops, *_watching(settings, parts, place), *spooled]),
        wire_resilience(
            settings, clock, ids, parts.fallbacks, parts.breakers, parts.metrics
        ) as resilience,
    ):
        await parts.policies.start()
        pipeline = Pipeline(
            Stages(
                authenticator=parts.policies.authenticator,
                plans=parts.fallbacks.plans,
                reader=_reader(parts),
                exact=parts.exact,
                limiter=parts.limiter,
                fleet=parts.fleet,
                retries=resilience.retries,
                idempotency=resilience.idempotency,
                cache=resilience.cache,
                turnstile=parts.turnstile,
                desk=_desk(settings, parts, EventSource(settings.gateway_id, boot_id, clock)),
                access_log=access_log,
                clock=clock,
                ids=ids,
            )
        )
        try:
            async with _health(parts, readiness, place, access_log) as health:
                app = _control_plane(parts, health, ids)
                slices = Slices(pipeline.start, clock.monotonic_s)
                yield Gateway(app, pipeline, slices.start, readiness, ids.request_id)
        finally:
            await _end(pipeline, parts, access_log)


def _control_plane(parts: _Parts, health: APIRouter, ids: IdMaker) -> FastAPI:
    models = models_router(parts.policies.authenticator, parts.replicas.pool)
    return control_plane([models, health], ids.request_id)


async def _end(pipeline: Pipeline, parts: _Parts, access_log: AccessLog) -> None:
    try:
        await pipeline.stop(_CLOSE_S)
        await parts.limiter.flush(_CLOSE_S)
        await parts.policies.stop()
    finally:
        access_log.tell()


def _parts(settings: Settings, boot_id: str, clock: Clock) -> _Parts:
    address = RespAddress.parse(settings.quota_url.get_secret_value(), StoreTls.of(settings))
    name, breakers = f"{settings.gateway_id}/{boot_id}", Breakers(clock.monotonic_s)
    quota = QuotaStore(address, settings.quota_call_deadline_s, greeting(name))
    metrics, providers = Metrics(settings.metrics_tenants), wire_providers(settings)
    replicas = wire_replicas(settings, clock, members_of_pools(providers))
    turnstile: Turnstile  # which looks who may go whenever the fleet before it gets on
    limits, costs = _limits(settings), CostModel(settings.prompt_estimate_quantile)
    fleet = Fleet(
        replicas.pool,
        replicas.router,
        limits,
        clock,
        Forecasting(
            costs.likely_prompt_tokens,
            breakers.barred,
            metrics.observe_predicted_ttft,
            lambda: turnstile.look(),
        ),
    )
    turnstile = Turnstile(
        fleet, clock, max_waiting=settings.max_waiting, ageing_s=settings.batch_ageing_s
    )
    policies = wire_policies(settings, clock)
    budgets = BudgetWatch(
        quota, lambda: policies.live.current, settings.metrics_tenants, clock.wall_s
    )
    return _Parts(
        policies=policies,
        quota=quota,
        costs=costs,
        exact=ExactCounting(replicas.pool),
        limiter=_limiter(settings, quota, name, clock),
        fallbacks=Fallbacks(
            _plans(settings, replicas.pool),
            providers,
            replicas.pool.goes_by,
            replicas.pool.own_name,
        ),
        breakers=breakers,
        replicas=replicas,
        fleet=fleet,
        turnstile=turnstile,
        spool=_spool(settings, boot_id),
        metrics=metrics,
        budgets=budgets,
    )


def _limiter(settings: Settings, quota: QuotaStore, name: str, clock: Clock) -> RedisLimiter:
    return RedisLimiter(
        quota,
        LocalShares(settings.quota_share_lease_s),
        name=name,
        lease_s=settings.quota_lease_s,
        monotonic_s=clock.monotonic_s,
    )


def _plans(settings: Settings, pool: ReplicaPool) -> PlanBook:
    return PlanBook(is_recorded=settings.records_admissions, adapter_of=pool.parent)


def _spool(settings: Settings, boot_id: str) -> Spool:
    return Spool(
        settings.spool_dir,
        boot_id,
        settings.spool_segment_bytes,
        hold_s=settings.spool_hold_s,
        gather_s=0.0 if settings.durability == "commit" else _GATHER_S,
    )


@asynccontextmanager
async def _health(
    parts: _Parts, readiness: Readiness, place: Place | None, access_log: AccessLog
) -> AsyncGenerator[APIRouter]:
    """What probes and scrapers are told: of all workers, where there are several."""

    def render() -> str:
        access_log.tell()
        parts.metrics.shadows.keep_only(parts.policies.live.current)
        told = parts.metrics.render(
            num_spooled=parts.spool.num_committed,
            num_waiting=parts.turnstile.num_waiting,
            quota=QuotaStanding(
                parts.limiter.num_local_admissions,
                parts.limiter.num_open_settlements,
                is_lost=not parts.limiter.is_reachable,
            ),
            is_policy_refused=parts.policies.live.is_refused,
            is_policy_lost=parts.policies.live.is_store_lost,
        )
        return told + parts.budgets.render()

    async def render_alone() -> str:
        return render()

    async def reasons_alone() -> Sequence[str]:
        return readiness.reasons_not_ready()

    if place is None:
        yield health_router(reasons_alone, render_alone)
        return
    siblings = Siblings(place, render, readiness.reasons_clients_meet)
    async with siblings.answering():
        yield health_router(siblings.reasons_not_ready, siblings.render_all)


def _watching(settings: Settings, parts: _Parts, place: Place | None) -> list[Loop]:
    """Of several workers the first tells of budgets: all would tell the same, and be added up."""
    tells_budgets = settings.metrics_tenants and (place is None or place.index == 0)
    return [
        *([parts.budgets.run] if tells_budgets else []),
        *parts.policies.loops,
        parts.quota.run,
        parts.limiter.run,
        *parts.replicas.loops,
        parts.exact.run,
        SharedTurns(parts.quota, lambda: parts.turnstile.queues).run,
    ]


def _limits(settings: Settings) -> RelayLimits:
    return RelayLimits(
        max_answer_bytes=settings.max_answer_bytes,
        max_event_bytes=settings.max_event_bytes,
        abort_timeout_s=settings.abort_timeout_s,
        resume_patience_s=settings.resume_patience_s,
        explains_routes=settings.routing_explained,
    )


def _reader(parts: _Parts) -> RequestReader:
    traces_text = parts.replicas.follows_blocks
    return RequestReader(parts.replicas.pool, parts.costs, traces_text=traces_text)


def _desk(settings: Settings, parts: _Parts, source: EventSource) -> SettlementDesk:
    return SettlementDesk(
        limiter=parts.limiter,
        spool=parts.spool,
        events=EventEncoder(source),
        turnstile=parts.turnstile,
        experience=Experience(parts.costs, parts.exact, parts.fleet, source.clock.monotonic_s),
        waits=settings.durability == "commit",
    )


def _spooled(settings: Settings, parts: _Parts, life: Life) -> list[Loop]:
    owed = owed_settlements(settings, parts.quota, parts.policies.live, life)
    return [*owed, *shipping(settings, parts.spool, parts.limiter, parts.metrics, life)]


@asynccontextmanager
async def _closing(pool: ReplicaPool, providers: Mapping[str, Provider]) -> AsyncGenerator[None]:
    try:
        yield
    finally:
        await pool.close()
        for provider in providers.values():
            await provider.replica.client.close()


@asynccontextmanager
async def _open(spool: Spool) -> AsyncGenerator[None]:
    """Raises OSError if it cannot be opened."""
    spool.start()
    try:
        yield
    finally:
        await spool.stop(_CLOSE_S)


@asynccontextmanager
async def _background(loops: Sequence[Loop]) -> AsyncGenerator[None]:
    """Runs the loops beside the body.  One that fails takes the gateway down."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(loop()) for loop in loops]
        yield
        for task in tasks:
            task.cancel()
