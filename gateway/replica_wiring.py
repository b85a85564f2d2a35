"""The part of the composition root that is about replicas: finding, watching and choosing them."""

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from gateway.clock import Clock
from gateway.discovery.dns_source import DnsSource
from gateway.discovery.endpoint_slices import EndpointSliceSource, Service
from gateway.discovery.file_source import FileSource
from gateway.discovery.kubernetes_client import ApiServer, KubernetesClient
from gateway.discovery.membership import Membership, Source
from gateway.routing.block_streams import BlockReader, BlockStreams
from gateway.routing.engine_streams import EngineStreams, Publisher
from gateway.routing.hot_prefixes import HotPrefixes
from gateway.routing.pool import PoolTimings, ReplicaPool
from gateway.routing.prefix_index import PrefixIndex
from gateway.routing.prefix_reuse import PrefixReuse
from gateway.routing.profiles import RoutingOptions, routing_profile
from gateway.routing.replica import Replica
from gateway.routing.replica_events import ReplicaEvents
from gateway.routing.router import Router
from gateway.settings import Settings
from gateway.upstream.replica_client import ReplicaClient, Timeouts

_API_TIMEOUT_S = 10.0  # of a question to Kubernetes

Loop = Callable[[], Coroutine[Any, Any, None]]  # runs until cancelled


@dataclass(frozen=True, slots=True)
class Replicas:
    pool: ReplicaPool
    router: Router
    follows_blocks: bool  # exact routing: it wants to see prompts
    loops: list[Loop]


def wire_replicas(settings: Settings, clock: Clock, outside: Sequence[Replica]) -> Replicas:
    random = Random().random
    make_client = partial(ReplicaClient, timeouts=_timeouts(settings))
    timings = PoolTimings(
        settings.poll_interval_s, settings.poll_timeout_s, settings.routing_slow_start_s
    )
    clients = [make_client(replica.name, replica.url) for replica in settings.replicas]
    sources = _sources(settings, random)
    names = [source.name for source in sources]
    pool = ReplicaPool(clients, settings.model_aliases, timings, clock, outside, names)
    index = PrefixIndex(settings.routing_index_blocks) if settings.routing == "exact" else None
    router = _router(settings, pool, index, random)
    membership = Membership(pool, make_client)
    loops: list[Loop] = [
        partial(pool.watch, router.tick),
        *(partial(s.run, membership.publisher(s.name)) for s in sources),
    ]
    if index is not None:
        readers: list[BlockReader] = [
            ReplicaEvents(index),
            EngineStreams(index, _publishers(settings)),
        ]
        loops.append(BlockStreams(pool, index, readers).run)
    return Replicas(pool, router, index is not None, loops)


def _publishers(settings: Settings) -> dict[str, Publisher]:
    return {
        name: Publisher(address.host, address.port, address.replay_port)
        for name, address in settings.routing_engine_events.items()
    }


def _timeouts(settings: Settings) -> Timeouts:
    return Timeouts(
        connect_s=settings.connect_timeout_s,
        head_s=settings.head_timeout_s,
        idle_s=settings.idle_timeout_s,
        keep_alive_s=settings.upstream_keep_alive_s,
    )


def _router(
    settings: Settings,
    pool: ReplicaPool,
    index: PrefixIndex | None,
    random: Callable[[], float],
) -> Router:
    options = RoutingOptions(
        load_factor=settings.routing_load_factor,
        least_prefix_tokens=settings.routing_least_prefix_tokens,
    )
    hot, reuse = HotPrefixes(), PrefixReuse(random)
    profile = routing_profile(options, hot, reuse, random, index)
    return Router(pool, profile, hot, reuse, index)


def _sources(settings: Settings, random: Callable[[], float]) -> list[Source]:
    """Beside the static list."""
    sources: list[Source] = []
    if settings.replica_file is not None:
        sources.append(FileSource(settings.replica_file))
    if settings.replica_dns is not None:
        host, _, port = settings.replica_dns.partition(":")
        sources.append(DnsSource(host, int(port)))
    if settings.replica_services:
        folder = settings.kubernetes_credentials
        server = ApiServer(settings.kubernetes_url, folder / "ca.crt", folder / "token")
        client = KubernetesClient(server, _API_TIMEOUT_S)
        namespace, port_name = settings.kubernetes_namespace, settings.replica_port_name
        for name in settings.replica_services:
            service = Service(namespace, name, port_name)
            sources.append(EndpointSliceSource(client, service, random))
    return sources
