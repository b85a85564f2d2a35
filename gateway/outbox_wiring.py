"""The part of the composition root that takes on, or up, what is in the spool."""

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from contracts import metrics as names
from gateway.admission.debts import Debts
from gateway.admission.quota_store import QuotaStore
from gateway.admission.redis_limiter import RedisLimiter
from gateway.clock import Clock
from gateway.kafka_wiring import client_arguments
from gateway.metrics import Metrics
from gateway.outbox.bound import OutboxBound, OutboxLimit
from gateway.outbox.kafka import KafkaShipper
from gateway.outbox.orphans import orphans
from gateway.outbox.segments import SegmentFaults
from gateway.outbox.spool import Spool
from gateway.outbox.unshipped import unshipped
from gateway.owed_settlements import OwedSettlements
from gateway.policies import LivePolicies
from gateway.recovered_settlements import RecoveredSettlements
from gateway.settings import Settings
from gateway.workers.place import Place

Loop = Callable[[], Coroutine[Any, Any, None]]  # runs until cancelled


@dataclass(frozen=True, slots=True)
class Life:
    """Of this process, beside others that have the same spool."""

    boot_id: str
    clock: Clock
    place: Place | None


def owed_settlements(
    settings: Settings, quota: QuotaStore, policies: LivePolicies, life: Life
) -> Sequence[Loop]:
    wall_s, faults = life.clock.wall_s, SegmentFaults()
    open_pass = partial(orphans, settings.spool_dir, life.boot_id, wall_s, faults, {})
    debts = Debts(quota)
    owed = OwedSettlements(open_pass, debts, lambda: policies.current)
    return (owed.run, RecoveredSettlements(debts).run)


def shipping(
    settings: Settings,
    spool: Spool,
    limiter: RedisLimiter,
    metrics: Metrics,
    life: Life,
) -> Sequence[Loop]:
    """Without Kafka, billing reads the spool itself."""
    if settings.kafka_bootstrap is None:
        return ()
    folder = settings.spool_dir
    wall_s = life.clock.wall_s
    open_pass = partial(
        unshipped, folder, life.boot_id, wall_s, lambda: limiter.is_owing, SegmentFaults()
    )
    is_in_charge = life.place is None or life.place.index == 0
    bound = OutboxBound(
        folder,
        life.boot_id,
        spool,
        limit=OutboxLimit(settings.spool_max_waiting_bytes, settings.spool_full == "shed"),
        is_in_charge=is_in_charge,
        wall_s=wall_s,
    )
    if is_in_charge:  # the workers' numbers are summed
        metrics.read_from(names.GATEWAY_OUTBOX_BYTES, lambda: {(): bound.waiting_bytes}, "gauge")
        metrics.read_from(names.GATEWAY_SHED_EVENTS, lambda: {(): bound.num_shed})
    _brokers(settings)  # what is wrong with them from the start ends it
    shipper = KafkaShipper(partial(_brokers, settings), open_pass, metrics.count_shipped)
    return (shipper.run, bound.run)


def _brokers(settings: Settings) -> dict[str, Any]:  # aiokafka has no types
    """Raises OSError for certificates that cannot be read."""
    return {"bootstrap_servers": settings.kafka_bootstrap, **client_arguments(settings)}
