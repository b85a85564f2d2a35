"""What billing looks after beside posting: budgets that run out, counters that were lost, books.

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

from billing.alert_topic import AlertTopic
from billing.alerts import AlertBook
from billing.auditor import AuditReport
from billing.errors import AlertRefused, BillingError, LedgerMissing
from billing.ledger import utc_now
from billing.spend_counters import raise_counters
from billing.telemetry import Told
from billing.terms import Terms, terms_at
from billing.webhook import WebhookSender
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


class BudgetWatch:
    """Raises alerts and tells them: the log, and whoever of webhook and topic there is."""

    def __init__(
        self,
        book: AlertBook,
        terms_path: Path,
        now: Callable[[], datetime],
        is_stopping: Callable[[], bool],
        topic: AlertTopic | None = None,
    ) -> None:
        self._book = book
        self._topic = topic
        self._path = terms_path
        self._now = now
        self._is_stopping = is_stopping
        self._terms: Terms | None = None  # the last that could be read

    def step(self) -> None:
        """Raises TermsInvalid, LedgerUnavailable, WebhookFailed, AlertTopicUnavailable.

        Terms that are bad or gone leave the last good ones.  Before any were read nothing is told:
        nobody knows to whom.
        """
        try:
            found = terms_at(self._path)
            self._terms = self._terms if found is None else found
        finally:
            if self._terms is not None:
                self._tell(self._terms)

    def _tell(self, terms: Terms) -> None:
        for alert in self._book.raise_due(terms):
            fields = {"tenant_id": alert.tenant_id, "alert_id": alert.alert_id}
            logger.warning("a budget has reached a threshold", extra=fields)
        pending = self._book.pending()
        if not pending:
            return
        sender = None if terms.webhook is None else WebhookSender(terms.webhook, self._now)
        refused: AlertRefused | None = None
        for alert in pending:
            if self._is_stopping():
                return
            try:
                if sender is not None:
                    sender.send(alert.alert_id, alert.document)
                if self._topic is not None:
                    self._topic.send(alert.alert_id, alert.tenant_id, alert.document)
            except AlertRefused as exc:
                refused = exc  # those behind it may be taken
            else:
                self._book.mark_delivered(alert)
        if refused is not None:
            raise refused


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

    def __init__(self, reconcile: Callable[[], AuditReport], told: Told) -> None:
        self._reconcile = reconcile
        self._told = told

    def step(self) -> None:
        """Raises LedgerUnavailable, PriceBookInvalid, ContractError, OSError."""
        report = self._reconcile()
        self._told.note_reconciled(report.findings, utc_now())
        for finding in report.findings[:_MOST_TOLD]:
            fields = {
                "tenant_id": finding.tenant_id,
                "reason": finding.kind.value,
                "error": f"{finding.subject}: {finding.detail}",
            }
            logger.error("accounts differ", extra=fields)
        logger.info("accounts compared", extra={"num_events": len(report.findings)})
