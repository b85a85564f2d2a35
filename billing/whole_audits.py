"""When billing's own audit counts all events, and takes nothing from sums: once a day."""

import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from billing.audit import SEEN_BY_COUNTING
from billing.auditor import AuditReport
from billing.errors import LedgerUnavailable
from billing.reconciliation import AuditRules

logger = logging.getLogger(__name__)

_EVERY: Final = timedelta(days=1)


class WholeAudits:
    """One that fails keeps no other from its work: it is tried again a day later.

    After one that found what only counting sees the next is one, too: no other sees it end.
    """

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._next_at: datetime | None = None  # None: at once

    def compare(
        self, rules: AuditRules, reconciled: Callable[[AuditRules], AuditReport]
    ) -> AuditReport:
        """By ``rules``, and counted where that is due.  Raises what ``reconciled`` does."""
        if self._next_at is not None and self._now() < self._next_at:
            return reconciled(rules)
        self._next_at = self._now() + _EVERY
        try:
            report = reconciled(replace(rules, is_counted=True))
        except LedgerUnavailable as exc:
            logger.warning("not all events could be counted", extra={"error": str(exc)})
            return reconciled(rules)
        if any(finding.kind in SEEN_BY_COUNTING for finding in report.findings):
            self._next_at = None
        return report
