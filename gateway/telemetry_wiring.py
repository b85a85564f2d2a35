"""The part of the composition root that knows whether anybody collects telemetry."""

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.clock import Clock
from gateway.settings import Settings
from gateway.telemetry.exporter import Exporter
from gateway.telemetry.tracer import Tracer
from gateway.upstream.replica_client import ReplicaClient, Timeouts

_TIMEOUTS = Timeouts(connect_s=2.0, head_s=5.0, idle_s=5.0, keep_alive_s=30.0)


@dataclass(frozen=True, slots=True)
class Telemetry:
    tracer: Tracer | None
    loops: Sequence[Callable[[], Coroutine[Any, Any, None]]]  # each runs until cancelled


def wire_telemetry(settings: Settings, boot_id: str, clock: Clock) -> Telemetry:
    if settings.otlp_url is None:
        return Telemetry(None, ())
    tracer = Tracer(settings.otlp_sample_ratio)
    resource = {
        "service.name": "pandal-gateway",
        "service.instance.id": f"{settings.gateway_id}/{boot_id}",
    }
    client = ReplicaClient("collector", settings.otlp_url, _TIMEOUTS)
    return Telemetry(tracer, (Exporter(client, tracer, resource, clock.wall_s).run,))
