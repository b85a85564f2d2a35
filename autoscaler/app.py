"""The composition root: settings in, one task group, and the lease given back at the end."""

import asyncio
import logging
import random
import secrets
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from urllib.parse import urlsplit

from autoscaler.cluster import Address
from autoscaler.engine_metrics import ENGINE_READING, EngineSample
from autoscaler.errors import ClusterRefused
from autoscaler.kubernetes import paths
from autoscaler.kubernetes.api import KubernetesApi, connected
from autoscaler.kubernetes.cluster import Home
from autoscaler.kubernetes.gateway_pods import GatewayPods
from autoscaler.kubernetes.lease import Clocks, Elector, LeaseTimings
from autoscaler.kubernetes.lease_store import KubernetesLease
from autoscaler.kubernetes.objects import Pool
from autoscaler.kubernetes.pod_watches import PodWatches, WatchInputs
from autoscaler.kubernetes.pool_loop import PoolLoop
from autoscaler.kubernetes.pool_loops import PoolLoops
from autoscaler.kubernetes.reflector import Collection, Reflector, WatchTimings
from autoscaler.kubernetes.resource import PoolSpec
from autoscaler.pages import Pages
from autoscaler.prometheus import Prometheus
from autoscaler.reconciler import Sources
from autoscaler.replica_line import HttpReplicaLine
from autoscaler.scrape import PodPages
from autoscaler.settings import Settings
from autoscaler.telemetry import Telemetry, Told

logger = logging.getLogger(__name__)


async def serve(settings: Settings, stop: asyncio.Event) -> None:
    """Until ``stop``.  Raises BadPolicy for settings that cannot be followed, and OSError."""
    timings = lease_timings(settings)
    async with connected(settings.kubeconfig, request_timeout_s=settings.request_timeout_s) as api:
        elector = _elector(settings, timings, api)
        told = Told(time.monotonic, leads=elector.may_act)
        telemetry = Telemetry(told)
        async with telemetry.served(settings.host, settings.port) as port:
            logger.info("started", extra={"port": port})
            try:
                async with asyncio.TaskGroup() as group:
                    work = _work(settings, api, elector, told)
                    working = group.create_task(work, name="work")
                    await stop.wait()
                    working.cancel()
            finally:
                with suppress(ClusterRefused):  # then the others wait the lease's duration
                    await elector.resign()


def lease_timings(settings: Settings) -> LeaseTimings:
    return LeaseTimings(
        settings.lease_duration_s,
        settings.lease_renew_deadline_s,
        settings.request_timeout_s,
        settings.lease_retry_period_s,
    )


async def _work(settings: Settings, api: KubernetesApi, elector: Elector, told: Told) -> None:
    inputs = WatchInputs(
        WatchTimings(settings.watch_lifetime_s, settings.watch_silence_s),
        time.monotonic,
        random.random,
        asyncio.sleep,
    )
    pools = Reflector(
        api,
        Collection(paths.pools(settings.namespace), Pool),
        inputs.timings,
        monotonic_s=time.monotonic,
        random=random.random,
    )
    async with asyncio.TaskGroup() as group:
        watches = PodWatches(api, settings.namespace, inputs, group)
        home = Home(
            api, settings.namespace, elector, watches, HttpReplicaLine(settings.scrape_timeout_s),
            lambda: pools.items.values(), time.time,
        )  # fmt: skip
        loops = PoolLoops(
            pools,
            lambda name: _pool_loop(settings, home, api, name),
            period_s=settings.period_s,
            sleep=asyncio.sleep,
            random=random.random,
            told=told,
        )
        group.create_task(elector.run(asyncio.sleep), name="elector")
        group.create_task(pools.run(asyncio.sleep), name="watch pools")
        group.create_task(loops.run(group), name="pools")


def _pool_loop(settings: Settings, home: Home, api: KubernetesApi, name: str) -> PoolLoop:
    pages = _pages(settings)

    async def scrape(found: Mapping[str, Address]) -> Mapping[str, EngineSample | None]:
        return await pages.read(found, ENGINE_READING)

    def sources(spec: PoolSpec) -> Sources:
        if spec.gateway is None:
            return Sources(scrape)
        return Sources(scrape, GatewayPods(home.pods, spec.gateway, pages).ask)

    return PoolLoop(home, name, events=api, sources=sources, is_dry_run=settings.dry_run)


def _pages(settings: Settings) -> Pages:
    if settings.prometheus_url is None:
        return PodPages(settings.scrape_timeout_s)
    url = urlsplit(settings.prometheus_url)
    assert url.hostname is not None, "the setting's pattern has one"
    assert url.port is not None, "as of the port"
    return Prometheus(
        Address(url.hostname, url.port),
        path=url.path.rstrip("/"),
        namespace=settings.namespace,
        timeout_s=settings.scrape_timeout_s,
    )


def _elector(settings: Settings, timings: LeaseTimings, api: KubernetesApi) -> Elector:
    name = settings.identity or socket.gethostname()
    return Elector(
        KubernetesLease(api, settings.namespace, settings.lease_name),
        f"{name}_{secrets.token_hex(4)}",
        timings,
        clocks=Clocks(time.monotonic, lambda: datetime.now(UTC)),
        random=random.random,
    )
