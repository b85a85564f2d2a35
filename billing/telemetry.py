"""``/metrics`` and ``/health`` of billing, in plain HTTP/1.0.

Asked by a probe and a scraper every few seconds: no framework is worth its start for that.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import datetime
from typing import Final

from billing.audit import Kind
from billing.auditor import AuditReport
from billing.ledger import PostResult
from billing.money import usd_from_pico_usd
from contracts import metrics as names

_PATIENCE_S: Final = 5.0
_HUNG_AFTER_S: Final = 600.0  # a database's statement may take five minutes


class Told:
    """What has been read and posted in this life, and what the last reconciliation found."""

    def __init__(
        self, now: Callable[[], datetime], monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._now = now
        self._monotonic_s = monotonic_s
        self._is_opening = False
        self._moved_s = monotonic_s()  # the last transaction or round of reading, or the start
        self.read_at: datetime | None = None  # None: not yet without a fault
        self.posted_at: datetime | None = None
        self.lag_s: float | None = None  # of the batch that was posted then
        self.fault: str | None = None  # what is in the way; None: nothing
        self.events: Counter[str] = Counter()  # by what became of them
        self.event_at: dict[str, datetime] = {}  # the last of those
        self.charged_pico_usd = 0
        self.differences: Counter[Kind] | None = None  # None: not compared yet
        self.num_unpriced = self.num_dead_letters = 0  # in the ledger, by then
        self.reconciled_at: datetime | None = None

    @contextmanager
    def opening(self) -> Iterator[None]:
        """The books: an upgrade is one transaction, which takes as long as the ledger is."""
        self._is_opening = True
        try:
            yield
        finally:
            self._is_opening = False
            self.note_progress()

    def note_progress(self) -> None:
        """One transaction has ended.  Any thread may say so."""
        self._moved_s = self._monotonic_s()

    def note_posted(self, result: PostResult) -> None:
        self.note_progress()
        self.posted_at = self._now()
        for outcome, number in (
            ("posted", result.num_posted),
            ("repeated", result.num_repeated),
            ("unpriced", result.num_unpriced),
            ("dead", result.num_dead),
            ("late", result.num_late),
        ):
            self.events[outcome] += number
            if number:
                self.event_at[outcome] = self.posted_at
        self.charged_pico_usd += result.charged_pico_usd
        if result.newest_at is not None:
            self.lag_s = (self.posted_at - result.newest_at).total_seconds()

    def note_read(self) -> None:
        self.note_progress()
        self.read_at = self._now()
        self.fault = None

    def note_paused(self, fault: str) -> None:
        self.note_progress()
        self.fault = fault

    @property
    def is_hung(self) -> bool:
        """No transaction for longer than the deadline of any: a new process is all that helps."""
        return not self._is_opening and self._monotonic_s() - self._moved_s > _HUNG_AFTER_S

    @property
    def state(self) -> str:
        """In a word, and what is in the way."""
        if self._is_opening:
            return "opening"
        if self.is_hung:
            return "hung"
        return "ok" if self.fault is None else f"paused {self.fault}"

    def note_reconciled(self, report: AuditReport, at: datetime | None) -> None:
        """``at`` None: not all could be read, so that the time of the last one stays."""
        self.differences = Counter(finding.kind for finding in report.findings)
        self.num_unpriced, self.num_dead_letters = report.num_unpriced, report.num_dead_letters
        if at is not None:
            self.reconciled_at = at


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
                    status, body = self.page(head.split(b" ", 2)[1:2])
                    writer.write(
                        f"HTTP/1.0 {status}\r\nContent-Type: text/plain; version=0.0.4\r\n"
                        f"Content-Length: {len(body)}\r\n\r\n{body}".encode()
                    )
                    await writer.drain()
        finally:  # also when it is cancelled
            writer.close()

    def page(self, path: list[bytes]) -> tuple[str, str]:
        match path:
            case [b"/metrics"]:
                return "200 OK", "\n".join([*self._lines(), ""])
            case [b"/health"]:
                status = "503 Service Unavailable" if self._told.is_hung else "200 OK"
                return status, self._health()
            case _:
                return "404 Not Found", ""

    def _health(self) -> str:
        told = self._told
        lag = "never posted" if told.lag_s is None else f"lag_s {told.lag_s:.3f}"
        return "\n".join(
            [
                told.state,
                f"read_at {_said(told.read_at)}",
                f"posted_at {_said(told.posted_at)}",
                lag,
                "",
            ]
        )

    def _lines(self) -> Iterator[str]:
        told = self._told
        for name, at in (
            (names.BILLING_READ_AT, told.read_at),
            (names.BILLING_POSTED_AT, told.posted_at),
        ):
            if at is not None:
                yield f"# TYPE {name} gauge"
                yield f"{name} {at.timestamp():.3f}"
        if told.lag_s is not None:
            yield f"# TYPE {names.BILLING_LAG} gauge"
            yield f"{names.BILLING_LAG} {told.lag_s:.3f}"
        yield f"# TYPE {names.BILLING_EVENTS} counter"
        for outcome in ("posted", "repeated", "unpriced", "dead", "late"):
            yield f'{names.BILLING_EVENTS}{{outcome="{outcome}"}} {told.events[outcome]}'
        yield f"# TYPE {names.BILLING_EVENT_AT} gauge"
        for outcome, at in told.event_at.items():
            yield f'{names.BILLING_EVENT_AT}{{outcome="{outcome}"}} {at.timestamp():.3f}'
        yield f"# TYPE {names.BILLING_CHARGED_USD} counter"
        yield f"{names.BILLING_CHARGED_USD} {usd_from_pico_usd(told.charged_pico_usd):f}"
        if told.reconciled_at is not None:
            yield f"# TYPE {names.BILLING_RECONCILED_AT} gauge"
            yield f"{names.BILLING_RECONCILED_AT} {told.reconciled_at.timestamp():.0f}"
        if told.differences is None:
            return
        for name, number in (
            (names.BILLING_UNPRICED, told.num_unpriced),
            (names.BILLING_DEAD_LETTERS, told.num_dead_letters),
        ):
            yield f"# TYPE {name} gauge"
            yield f"{name} {number}"
        yield f"# TYPE {names.BILLING_DIFFERENCES} gauge"
        for kind in Kind:
            yield f'{names.BILLING_DIFFERENCES}{{kind="{kind.value}"}} {told.differences[kind]}'


def _said(at: datetime | None) -> str:
    return "never" if at is None else at.isoformat(timespec="milliseconds")
