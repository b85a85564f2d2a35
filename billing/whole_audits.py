"""When billing's own audit counts all events, and takes nothing from sums: once a day."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

from billing.auditor import AuditReport

_EVERY: Final = timedelta(days=1)


class WholeAudits:
    """After one that found a difference the next is one, too: only such a one sees it end."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._agreed_at: datetime | None = None

    @property
    def is_due(self) -> bool:
        return self._agreed_at is None or self._agreed_at + _EVERY <= self._now()

    def note(self, report: AuditReport) -> None:
        """Of one that was due."""
        self._agreed_at = None if report.findings else self._now()
