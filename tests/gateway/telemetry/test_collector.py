"""What a gateway tells a collector, read by the collector's own definitions."""

import asyncio
import base64
import http.server
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from google.protobuf import json_format
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from gateway.telemetry.exporter import Exporter
from gateway.telemetry.tracer import Tracer
from gateway.upstream.replica_client import ReplicaClient, Timeouts
from tests.gateway.conftest import Tenant
from tests.gateway.http_client import chat
from tests.gateway.processes import Gateway
from tests.gateway.upstream_server import Upstream
from tests.support.waiting import eventually

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@dataclass
class Collector:
    url: str = ""
    bodies: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def spans(self) -> list[Any]:
        found = []
        for body in self.bodies.get("/v1/traces", []):
            request = json_format.ParseDict(_with_base64(body), ExportTraceServiceRequest())
            for resource in request.resource_spans:
                found += [span for scope in resource.scope_spans for span in scope.spans]
        return found

    def metrics(self) -> dict[str, Any]:
        body = self.bodies["/v1/metrics"][-1]
        request = json_format.ParseDict(body, ExportMetricsServiceRequest())
        (resource,) = request.resource_metrics
        return {metric.name: metric for metric in resource.scope_metrics[0].metrics}


def _with_base64(body: dict[str, Any]) -> dict[str, Any]:
    """OTLP writes ids in hexadecimal, where protobuf's own JSON has base64."""
    for resource in body["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                for name in ("traceId", "spanId", "parentSpanId"):
                    if len(span.get(name, "")) in (16, 32):
                        raw = bytes.fromhex(span[name])
                        span[name] = base64.b64encode(raw).decode()
    return body


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    found = Collector()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:  # the base class's name
            body = self.rfile.read(int(self.headers["content-length"]))
            found.bodies.setdefault(self.path, []).append(json.loads(body))
            self.send_response(200)
            self.send_header("content-length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: object) -> None:
            return

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        found.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield found
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def traced(new_gateway: Callable[..., Gateway], collector: Collector) -> Iterator[Gateway]:
    gateway = new_gateway("traced", GATEWAY_OTLP_URL=collector.url)
    gateway.start()
    yield gateway
    assert gateway.stop() == 0


def attributes(member: Any) -> dict[str, Any]:
    return {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in member.attributes}


async def test_a_request_is_a_span_and_the_replica_is_told_its_name(
    make_tenant: Callable[..., Tenant], traced: Gateway, collector: Collector, upstream: Upstream
) -> None:
    tenant = make_tenant(on=traced)
    await tenant.accepted()
    assert (await tenant.chat(chat(model="unknown"))).status == 404
    reply = await tenant.chat(chat(), traceparent=f"00-{TRACE}-{PARENT}-01")
    assert reply.status == 200
    (span,) = await until_spans(collector)
    assert span.parent_span_id.hex() == PARENT
    told = upstream.generations[-1].received.headers["traceparent"]
    assert told == f"00-{TRACE}-{span.span_id.hex()}-01"
    found = attributes(span)
    event = tenant.only_event()
    assert span.name == "chat model-a"
    assert found["gen_ai.operation.name"] == "chat"
    assert found["gen_ai.usage.input_tokens"] == event.input_tokens
    assert found["gen_ai.usage.output_tokens"] == event.output_text_tokens
    assert found["http.response.status_code"] == 200
    assert span.end_time_unix_nano > span.start_time_unix_nano
    assert tenant.name not in str(found)
    assert tenant.key not in str(found)


async def until_spans(collector: Collector) -> list[Any]:
    def ours() -> list[Any]:
        return [span for span in collector.spans() if span.trace_id.hex() == TRACE]

    await asyncio.to_thread(eventually, lambda: bool(ours()), "the collector to be told")
    return ours()


def served_in(metrics: dict[str, Any]) -> list[Any]:
    points = metrics["gen_ai.server.request.duration"].histogram.data_points
    return [point for point in points if "error.type" not in attributes(point)]


async def test_histograms_are_those_of_the_conventions(
    make_tenant: Callable[..., Tenant], traced: Gateway, collector: Collector
) -> None:
    tenant = make_tenant(on=traced)
    await tenant.accepted()
    assert (await tenant.chat(chat())).status == 200

    def are_told() -> bool:
        return "/v1/metrics" in collector.bodies and bool(served_in(collector.metrics()))

    await asyncio.to_thread(eventually, are_told, "the metrics")
    found = collector.metrics()
    assert set(found) == {
        "gen_ai.server.request.duration",
        "gen_ai.server.time_to_first_token",
        "gen_ai.client.token.usage",
    }
    served = served_in(found)
    assert sum(p.count for p in served) >= 1
    assert len(served[0].bucket_counts) == len(served[0].explicit_bounds) + 1
    kinds = {
        attributes(p)["gen_ai.token.type"]
        for p in found["gen_ai.client.token.usage"].histogram.data_points
    }
    assert kinds == {"input", "output"}
    for metric in found.values():
        assert all(p.count for p in metric.histogram.data_points), "of nothing nothing is told"


async def test_what_is_left_at_the_end_is_told(collector: Collector) -> None:
    tracer = Tracer(1.0)
    timeouts = Timeouts(connect_s=5.0, head_s=5.0, idle_s=5.0, keep_alive_s=5.0)
    client = ReplicaClient("collector", collector.url, timeouts)
    exporter = Exporter(client, tracer, {"service.name": "ending"}, time.time)
    tracer.duration_s.of((("gen_ai.operation.name", "chat"),)).observe([1.0])
    running = asyncio.create_task(exporter.run())
    await asyncio.sleep(0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert "ending" in json.dumps(collector.bodies["/v1/metrics"])
