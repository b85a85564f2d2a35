"""One ReplicaPool's loop: follow its spec, tick, and write down what came of it.

Whoever does not lead ticks too, and writes nothing: when its turn comes it knows the demand's
history, and need not wait a window for it.
"""

import logging
from collections.abc import Callable
from typing import Final, Protocol

from autoscaler.errors import BadPolicy, ClusterRefused
from autoscaler.kubernetes import paths
from autoscaler.kubernetes.cluster import Home, KubernetesCluster
from autoscaler.kubernetes.events import events_of
from autoscaler.kubernetes.notebook import Notebook
from autoscaler.kubernetes.objects import KnownStatus, Pool
from autoscaler.kubernetes.resource import PoolSpec, pool_spec
from autoscaler.kubernetes.status import Seen, invalid_status, is_news, status_of
from autoscaler.kubernetes.wire import Json
from autoscaler.reconciler import Reconciler, Report, Rules, Sources

logger = logging.getLogger(__name__)

STATUS_PERIOD_S: Final = 60.0  # without news: the reasons' figures grow old


class Creates(Protocol):
    async def create(self, path: str, body: Json) -> bytes: ...


class PoolLoop:
    def __init__(
        self,
        home: Home,
        name: str,
        *,
        events: Creates,
        sources: Callable[[PoolSpec], Sources],
        is_dry_run: bool = False,
    ) -> None:
        """``is_dry_run``: whatever the resource says."""
        self._home = home
        self._events = events
        self._sources = sources
        self._is_dry_run = is_dry_run
        self._notebook = Notebook(
            home.api, f"{paths.pools(home.namespace)}/{name}", home.leadership
        )
        self._spec: PoolSpec | None = None
        self._cluster: KubernetesCluster | None = None
        self._reconciler: Reconciler | None = None
        self._last: Report | None = None  # that was told
        self._written: tuple[Json, float, str] | None = None  # status, when, in which term

    async def tick(self, pool: Pool) -> Report | None:
        """``None``: the resource makes no sense.  Raises ClusterRefused."""
        try:
            reconciler, cluster = self._follow(
                pool_spec(pool.metadata.name, pool.spec), pool.status
            )
        except BadPolicy as exc:
            await self._tell_invalid(pool, str(exc))
            return None
        report = await reconciler.tick()
        if self._home.leadership.may_act():
            await self._tell(report, pool, cluster)
        return report

    def _follow(self, spec: PoolSpec, status: KnownStatus) -> tuple[Reconciler, KubernetesCluster]:
        """A changed spec keeps what was learned, as a restart does.  Raises BadPolicy."""
        if self._cluster is None or self._reconciler is None:
            self._cluster = KubernetesCluster(self._home, spec, self._notebook)
            self._reconciler = Reconciler(
                self._rules(spec),
                self._cluster,
                sources=self._sources(spec),
                clock=self._home.now_s,
                fence=self._home.leadership,
                report=lambda _: None,  # told with the resource's own facts, below
            )
            self._reconciler.recall(_learned(status))
        elif spec != self._spec:
            self._reconciler.follow(self._rules(spec), self._sources(spec))
            self._cluster.follow(spec)
        self._spec = spec
        return self._reconciler, self._cluster

    def _rules(self, spec: PoolSpec) -> Rules:
        return Rules(spec, spec.drain_deadline_s, spec.is_dry_run or self._is_dry_run)

    async def _tell(self, report: Report, pool: Pool, cluster: KubernetesCluster) -> None:
        is_dry_run = self._is_dry_run or (self._spec is not None and self._spec.is_dry_run)
        before, self._last = self._last, report
        for event in events_of(report, before, pool.metadata, self._home.leadership.token):
            await self._create(event)  # first: the status is told again, a count is written once
        status = status_of(report, self._seen(pool, is_dry_run, cluster.unschedulable))
        await self._write(status, report.decision.at_s)

    async def _create(self, event: Json) -> None:
        """One that is lost is only a line less for people: the status has it too."""
        try:
            await self._events.create(paths.events(self._home.namespace), event)
        except ClusterRefused as exc:
            logger.warning("event not written", extra={"error": str(exc)})

    async def _tell_invalid(self, pool: Pool, message: str) -> None:
        if self._home.leadership.may_act():
            now_s = self._home.now_s()
            await self._write(invalid_status(message, self._seen(pool, False, None), now_s), now_s)

    async def _write(self, status: Json, now_s: float) -> None:
        token = self._home.leadership.token
        if self._written is not None:
            before, at_s, by = self._written
            is_recent = now_s - at_s < STATUS_PERIOD_S and by == token
            if is_recent and not is_news(before, status) and not self._notebook.has_unsettled:
                return
        await self._notebook.write(status)
        self._written = status, now_s, token

    def _seen(self, pool: Pool, is_dry_run: bool, unschedulable: str | None) -> Seen:
        known = self._notebook.pool or pool
        conditions = known.status.conditions
        return Seen(pool.metadata.generation, is_dry_run, conditions, unschedulable)


def _learned(status: KnownStatus) -> dict[str, float]:
    told = {variant.name: variant.tokens_per_second for variant in status.variants}
    return {name: rate for name, rate in told.items() if rate is not None}
