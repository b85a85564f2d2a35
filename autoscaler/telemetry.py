"""``/metrics``, ``/health`` and ``/ready`` of the autoscaler, in plain HTTP/1.0.

Asked by a probe and a scraper every few seconds: no framework is worth its start for that.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Final

from autoscaler.pool import Phase
from autoscaler.reconciler import Report
from contracts import metrics as names

_PATIENCE_S: Final = 5.0
_STUCK_AFTER_S: Final = 60.0  # they turn every second; then a restart may help


class Told:
    """The last report of each pool, how often each reason was given, and when the loops turned."""

    def __init__(self, monotonic_s: Callable[[], float], *, leads: Callable[[], bool]) -> None:
        self.leads = leads
        self._monotonic_s = monotonic_s
        self._turned_monotonic_s = monotonic_s()
        self.reports: dict[str, Report] = {}
        self.reasons: Counter[tuple[str, str]] = Counter()

    @property
    def is_stuck(self) -> bool:
        return self._monotonic_s() - self._turned_monotonic_s > _STUCK_AFTER_S

    def turned(self) -> None:
        self._turned_monotonic_s = self._monotonic_s()

    def note(self, pool: str, report: Report) -> None:
        """Reasons count where they are acted on: many decide alike, and one leads."""
        self.reports[pool] = report
        if self.leads():
            self.reasons.update((pool, reason.code.value) for reason in report.decision.reasons)

    def forget(self, pool: str) -> None:
        self.reports.pop(pool, None)


class Telemetry:
    def __init__(self, told: Told) -> None:
        self._told = told

    @asynccontextmanager
    async def served(self, host: str, port: int) -> AsyncIterator[int]:
        """The port.  Raises OSError when it is taken."""
        async with await asyncio.start_server(self._answer, host, port) as server:
            yield int(server.sockets[0].getsockname()[1])

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError, EOFError, asyncio.LimitOverrunError):  # a timeout is an OSError
                async with asyncio.timeout(_PATIENCE_S):
                    head = await reader.readuntil(b"\r\n\r\n")
                    status, body = self._page(head.split(b" ", 2)[1:2])
                    writer.write(
                        f"HTTP/1.0 {status}\r\nContent-Type: text/plain; version=0.0.4\r\n"
                        f"Content-Length: {len(body)}\r\n\r\n{body}".encode()
                    )
                    await writer.drain()
        finally:  # also when it is cancelled
            writer.close()

    def _page(self, path: list[bytes]) -> tuple[str, str]:
        match path:
            case [b"/metrics"]:
                return "200 OK", "\n".join([*self._lines(), ""])
            case [b"/health" | b"/ready"]:
                is_stuck = self._told.is_stuck
                return ("503 Stuck", "stuck\n") if is_stuck else ("200 OK", "ok\n")
            case _:
                return "404 Not Found", ""

    def _lines(self) -> Iterator[str]:
        yield f"# TYPE {names.AUTOSCALER_LEADS} gauge"
        yield f"{names.AUTOSCALER_LEADS} {int(self._told.leads())}"
        yield f"# TYPE {names.AUTOSCALER_REPLICAS} gauge"
        yield f"# TYPE {names.AUTOSCALER_WANTED} gauge"
        yield f"# TYPE {names.AUTOSCALER_CONFLICT} gauge"
        for pool, report in sorted(self._told.reports.items()):
            yield f'{names.AUTOSCALER_CONFLICT}{{pool="{pool}"}} {int(report.conflict is not None)}'
            yield from _variant_lines(pool, report)
        yield f"# TYPE {names.AUTOSCALER_REASONS} counter"
        for (pool, code), count in sorted(self._told.reasons.items()):
            yield f'{names.AUTOSCALER_REASONS}{{pool="{pool}",reason="{code}"}} {count}'


def _variant_lines(pool: str, report: Report) -> Iterator[str]:
    for variant in report.state.variants:
        labels = f'pool="{pool}",variant="{variant.name}"'
        wanted = report.decision.wanted[variant.name]
        yield f"{names.AUTOSCALER_WANTED}{{{labels}}} {wanted}"
        for phase in Phase:
            yield (
                f'{names.AUTOSCALER_REPLICAS}{{{labels},phase="{phase.value}"}} '
                f"{variant.count(phase)}"
            )
