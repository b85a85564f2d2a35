"""Sends spans and histograms to a collector; one that is away costs nothing but what it misses."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final

from gateway.errors import UpstreamError
from gateway.telemetry.otlp import Attributes, encode_metrics, encode_spans
from gateway.telemetry.tracer import Tracer
from gateway.upstream.replica_client import ReplicaClient

logger = logging.getLogger(__name__)

_SPANS_S: Final = 1.0
_METRICS_EVERY: Final = 10  # times
_MOST_SPANS: Final = 512  # in one call
_PATIENCE_S: Final = 5.0
_LAST_S: Final = 1.0
_HEADERS: Final = b"content-type: application/json\r\n"


class Exporter:
    def __init__(
        self,
        client: ReplicaClient,
        tracer: Tracer,
        resource: Attributes,
        wall_s: Callable[[], float],
    ) -> None:
        self._client = client
        self._tracer = tracer
        self._resource = resource
        self._wall_s = wall_s
        self._started_ns = self._now_ns()
        self._is_failing = False

    async def run(self) -> None:
        """Runs until cancelled."""
        num_rounds = 0
        try:
            while True:
                await asyncio.sleep(_SPANS_S)
                num_rounds += 1
                await self.send_spans()
                if num_rounds % _METRICS_EVERY == 0:
                    await self.send_metrics()
        finally:
            await self._send_last()
            await self._client.close()

    async def _send_last(self) -> None:
        """What is left at the end, for as long as it holds nobody up."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_S):
                await self.send_spans()
                await self.send_metrics()

    async def send_spans(self) -> None:
        while spans := self._tracer.take_spans(_MOST_SPANS):
            body = encode_spans(self._resource, spans)
            if not await self._post(b"/v1/traces", body, num_spans=len(spans)):
                return

    async def send_metrics(self) -> None:
        histograms = self._tracer.histograms
        body = encode_metrics(self._resource, histograms, self._started_ns, self._now_ns())
        await self._post(b"/v1/metrics", body)

    async def _post(self, path: bytes, body: bytes, *, num_spans: int = 0) -> bool:
        try:
            async with asyncio.timeout(_PATIENCE_S):
                response = self._client.post(path, _HEADERS, body)
                try:
                    await response.head
                    is_taken = 200 <= response.status < 300
                finally:
                    response.cancel()
        except (UpstreamError, TimeoutError):
            is_taken = False
        if not is_taken:
            self._tracer.num_dropped += num_spans
        if not is_taken and not self._is_failing:  # once an outage
            fields = {"path": path.decode(), "num_events": self._tracer.num_dropped}
            logger.warning("the telemetry collector takes nothing", extra=fields)
        self._is_failing = not is_taken
        return is_taken

    def _now_ns(self) -> int:
        return int(self._wall_s() * 1e9)
