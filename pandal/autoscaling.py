"""``pandal up --autoscale``: the autoscaler's own loop over the processes of this machine."""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Final, NoReturn

from autoscaler.cluster import Address
from autoscaler.engine_metrics import ENGINE_READING, EngineSample
from autoscaler.errors import SourceFailed, SourceRefused
from autoscaler.policy import PoolPolicy, Variant
from autoscaler.reconciler import Reconciler, Report, Rules, Sources
from autoscaler.scrape import PodPages, get
from pandal.local_cluster import VARIANT, LocalCluster
from pandal.plan import FleetPlan, OwnReplica
from pandal.scaling_news import ScalingNews
from pandal.scaling_record import ScalingRecord
from pandal.screen import Screen
from pandal.supervisor import Supervisor

PERIOD_S: Final = 5.0
_ANSWER_TIMEOUT_S: Final = 2.0  # a replica that computes on all cores answers late


class Alone:
    """The launcher holds the data directory's lock: there is no other."""

    def may_act(self) -> bool:
        return True


def local_policy(num_begin: int, most: int) -> PoolPolicy:
    """Short windows: a local replica starts in seconds, and costs nothing while it does."""
    variant = Variant(
        VARIANT,
        max_replicas=most,
        num_slots=8,  # of a small model on a CPU: more only share the same cores
        tokens_per_s=100.0,  # a first guess, learned from then on
        cold_start_s=20.0,
    )
    return PoolPolicy(
        name=VARIANT,
        variants=(variant,),
        min_replicas=num_begin,
        max_replicas=most,
        down_window_s=60.0,
        down_interval_s=10.0,
    )


async def run_autoscaler(
    plan: FleetPlan,
    supervisor: Supervisor,
    screen: Screen,
    *,
    start: Callable[[OwnReplica], None],
) -> NoReturn:
    """Until cancelled."""
    num_begin, most = len(plan.first_replicas), len(plan.own_replicas)
    cluster = LocalCluster(
        plan.own_replicas,
        num_begin,
        supervisor=supervisor,
        start=start,
        is_ready=is_ready,
        now_s=time.time,
    )
    # A replica drains by itself after its count is lowered: nothing is waited for before.
    rules = Rules(local_policy(num_begin, most), drain_deadline_s=0.0)
    news = ScalingNews(rules.policy)
    record = ScalingRecord(plan.data_dir.scaling, tell=screen.problem)

    def show(report: Report) -> None:
        record.note(report)
        for line in news.lines(report):
            screen.line(line)

    reconciler = Reconciler(
        rules,
        cluster,
        sources=Sources(_scrape),
        clock=time.time,
        fence=Alone(),
        report=show,
    )
    async with asyncio.TaskGroup() as group:
        group.create_task(record.run(), name="scaling record")
        await reconciler.run(PERIOD_S, asyncio.sleep)


async def is_ready(address: Address) -> bool | None:
    """``None``: no answer in time, which one that computes on all cores owes nobody."""
    try:
        await get(address, "/ready", timeout_s=_ANSWER_TIMEOUT_S)
    except SourceRefused:
        return False
    except SourceFailed:
        return None
    return True


async def _scrape(found: Mapping[str, Address]) -> Mapping[str, EngineSample | None]:
    return await PodPages(_ANSWER_TIMEOUT_S).read(found, ENGINE_READING)
