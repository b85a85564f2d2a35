"""What became of each request: one log line, and counters whose labels are ours alone.

A path or a method that is none of the API's is "other": what somebody typed is no label, and might
be a secret.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from contracts import metrics as names
from contracts.names import HEADER_REQUEST_ID
from gateway.admin.callers import Caller
from gateway.clock import Clock
from gateway.metrics import Labels, family

logger = logging.getLogger(__name__)

_REQUEST_ID: Final = HEADER_REQUEST_ID.encode()
_OTHER: Final = "other"
_OF_PROBES: Final = ("/health", "/metrics")  # each some times a minute: counted, not logged
_REFUSED_LOGINS: Final = (401, 429)


class AdminMetrics:
    def __init__(self) -> None:
        self._requests: Counter[Labels] = Counter()
        self._num_refused_logins = 0

    def count(self, method: str, route: str, status: int) -> None:
        labels = (("method", method), ("route", route), ("status", str(status)))
        self._requests[labels] += 1
        self._num_refused_logins += status in _REFUSED_LOGINS

    def render(self) -> str:
        return "\n".join([*self._lines(), ""])

    def _lines(self) -> Iterator[str]:
        yield from family(names.ADMIN_REQUESTS, "counter", self._requests)
        refused: dict[Labels, int] = {(): self._num_refused_logins}
        yield from family(names.ADMIN_REFUSED_LOGINS, "counter", refused)


class AccessLog:
    """Around the whole application, so that what a route never saw is told as well."""

    def __init__(
        self, app: ASGIApp, metrics: AdminMetrics, request_id: Callable[[], str], clock: Clock
    ) -> None:
        self._app = app
        self._metrics = metrics
        self._request_id = request_id
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id, began_s = self._request_id(), self._clock.monotonic_s()
        status = 500  # unless it begins to answer

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                own = (_REQUEST_ID, request_id.encode())
                message = {**message, "headers": [*message["headers"], own]}
            await send(message)

        try:
            await self._app(scope, receive, sending)
        finally:
            self._tell(scope, status, request_id, (self._clock.monotonic_s() - began_s) * 1e3)

    def _tell(self, scope: Scope, status: int, request_id: str, latency_ms: float) -> None:
        found = scope.get("route")
        route = getattr(found, "path_format", _OTHER)
        method = scope["method"] if scope["method"] in getattr(found, "methods", ()) else _OTHER
        self._metrics.count(method, route, status)
        if route in _OF_PROBES:
            return
        fields = {
            "request_id": request_id,
            "method": method,
            "route": route,
            "status": status,
            "latency_ms": round(latency_ms, 3),
            "address": (scope.get("client") or ("",))[0],
        }
        caller = scope.get("state", {}).get("caller")
        if isinstance(caller, Caller):
            fields |= {"who": caller.name, "role": caller.role.name.lower()}
        level = logging.WARNING if status in _REFUSED_LOGINS or status >= 500 else logging.INFO
        logger.log(level, "admin request", extra=fields)
