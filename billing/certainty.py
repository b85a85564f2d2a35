"""When what a look at the accounts has found missing is certain: it is not merely on its way.

What was on its way at that look stood before the brokers' ends of then.  Once the ledger has read
as far, it has come, however much has been written since.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace

from billing.audit import Finding, Kind, QuotaLoss
from billing.auditor import AuditReport
from billing.lag import Lag
from billing.records import EventKey

_Missed = EventKey | tuple[str, QuotaLoss]  # an event, or what a tenant's quota lacks


class Sightings:
    """Where the brokers' records ended when each of what is missing now was first missed."""

    def __init__(self) -> None:
        self._ends: dict[_Missed, Mapping[str, int]] = {}

    def judged(self, report: AuditReport) -> AuditReport:
        """What it found, with losses that are certain only, and records that are not told apart.

        What may still come is no difference.
        """
        lag = report.lag
        if lag is not None:
            seen: list[_Missed] = [*report.missing, *report.lost.items()]
            self._ends = {each: self._ends.get(each, lag.ends) for each in seen}
        if report.unreadable_segments:
            lag = None  # what is in them may be what is missed
        unsure = frozenset(key for key in report.missing if not self._is_certain(key, lag))
        return replace(
            report,
            findings=[each for each in report.findings if not _is_of(each, unsure)],
            unsure=unsure,
            lost={t: loss for t, loss in report.lost.items() if self._is_certain((t, loss), lag)},
        )

    def _is_certain(self, missed: _Missed, lag: Lag | None) -> bool:
        return lag is not None and lag.has_passed(self._ends[missed])


def _is_of(finding: Finding, unsure: Collection[EventKey]) -> bool:
    """A record without an event, of one of them."""
    return finding.kind is Kind.NO_EVENT and (finding.tenant_id, finding.subject) in unsure
