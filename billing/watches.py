"""What billing looks after beside posting: counters that were lost, and books.

Each is a step that blocks and may fail; it is taken again and again, in a thread, for as long as
billing runs.  A failure is said once, until it is over, and never stops the posting.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Final

from billing.auditor import AuditReport
from billing.errors import BillingError, LedgerMissing
from billing.ledger import utc_now
from billing.spend_counters import raise_counters
from billing.telemetry import Told
from contracts.errors import ContractError
from contracts.policy import decode_policy_document

logger = logging.getLogger(__name__)

_MOST_TOLD: Final = 20  # findings: one cause makes many
INTERVAL_S: Final = 2.0  # a budget is known to have run out within five seconds, a posting included


async def watch(
    step: Callable[[], None],
    stop: asyncio.Event,
    *,
    first_s: float = 0.0,
    interval_s: float = INTERVAL_S,
) -> None:
    """Until ``stop`` is set, the first time after ``first_s``."""
    fault: str | None = None
    await _pause(stop, first_s)
    while not stop.is_set():
        try:
            await asyncio.to_thread(step)
            fault = None
        except (BillingError, ContractError, OSError) as exc:
            if str(exc) != fault:
                logger.error("a watch of billing fails", extra={"error": str(exc)})  # noqa: TRY400 - no bug
            fault = str(exc)
        except Exception:
            logger.exception("a watch of billing failed")
        await _pause(stop, interval_s)


async def _pause(stop: asyncio.Event, pause_s: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(pause_s):
            await stop.wait()


class CounterWatch:
    """Keeps the quota's spend counters from standing below the ledger."""

    def __init__(
        self, ledger_url: str, quota_url: str, policy_path: Path, now: Callable[[], datetime]
    ) -> None:
        self._ledger_url = ledger_url
        self._quota_url = quota_url
        self._policy_path = policy_path
        self._now = now

    def step(self) -> None:
        """Raises LedgerUnavailable, QuotaStoreUnavailable, ContractError, OSError."""
        try:
            policies = decode_policy_document(self._policy_path.read_bytes())
        except FileNotFoundError:
            return  # no tenant yet
        with contextlib.suppress(LedgerMissing):
            num_raised = raise_counters(
                self._ledger_url, self._quota_url, policies, now=self._now()
            )
            if num_raised:
                logger.warning("spend counters raised", extra={"num_raised": num_raised})


class ReconciliationWatch:
    """Compares all accounts; what differs is told in the log and the metrics."""

    def __init__(
        self, reconcile: Callable[[], AuditReport], told: Told, *, has_quota_store: bool
    ) -> None:
        self._reconcile = reconcile
        self._told = told
        self._has_quota_store = has_quota_store

    def step(self) -> None:
        """Raises LedgerUnavailable, PriceBookInvalid, ContractError, OSError."""
        report = self._reconcile()
        unknown = report.not_compared(has_quota_store=self._has_quota_store)
        self._told.note_reconciled(report, None if unknown else utc_now())
        for what in unknown:
            logger.error("not all accounts compared", extra={"reason": what.value})
        for name in report.unreadable_segments[:_MOST_TOLD]:
            logger.error("segment not compared", extra={"segment": name})
        if report.unsure:
            fields = {"num_events": len(report.unsure)}
            logger.error("what may still come is not posted yet", extra=fields)
        for finding in report.findings[:_MOST_TOLD]:
            about = {
                "tenant_id": finding.tenant_id,
                "reason": finding.kind.value,
                "error": f"{finding.subject}: {finding.detail}",
            }
            logger.error("accounts differ", extra=about)
        logger.info("accounts compared", extra={"num_events": len(report.findings)})
