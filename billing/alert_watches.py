"""Raises alerts of budgets, and tells each receiver of them: steps of ``billing.watches.watch``.

One watch for each channel: a receiver that is away or refuses keeps nothing from the others.
"""

import logging
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from billing.alerts import Alert, AlertBook, Channel
from billing.errors import AlertRefused
from billing.terms import BillingTerms, terms_at
from billing.webhook import WebhookSender

logger = logging.getLogger(__name__)

Send = Callable[[Alert], None]


class BudgetWatch:
    """Raises what is due; the log is told."""

    def __init__(self, book: AlertBook, terms_path: Path) -> None:
        self._book = book
        self._path = terms_path
        self.terms: BillingTerms | None = None  # the last that could be read

    def step(self) -> None:
        """Raises TermsInvalid, LedgerUnavailable.  Bad terms leave the last good ones."""
        try:
            found = terms_at(self._path)
            self.terms = self.terms if found is None else found
        finally:
            if self.terms is not None:
                self._raise_due(self.terms)

    def _raise_due(self, terms: BillingTerms) -> None:
        for alert in self._book.raise_due(terms):
            fields = {"tenant_id": alert.tenant_id, "alert_id": alert.alert_id}
            logger.warning("a budget has reached a threshold", extra=fields)


class ChannelWatch:
    """Tells one channel's receiver, again until it has taken each alert.

    ``receiver`` None: nobody knows yet who it is.
    """

    def __init__(
        self,
        book: AlertBook,
        channel: Channel,
        receiver: Callable[[], Send | None],
        is_stopping: Callable[[], bool],
    ) -> None:
        self._book = book
        self._channel = channel
        self._receiver = receiver
        self._is_stopping = is_stopping

    def step(self) -> None:
        """Raises LedgerUnavailable, TermsInvalid, WebhookFailed, AlertTopicUnavailable."""
        pending = self._book.pending(self._channel)
        send = self._receiver() if pending else None
        if send is None:
            return
        refused: AlertRefused | None = None
        for alert in pending:
            if self._is_stopping():
                return
            try:
                send(alert)
            except AlertRefused as exc:
                refused = exc  # those behind it may be taken
            else:
                self._book.mark_delivered(alert, self._channel)
        if refused is not None:
            raise refused


def to_webhook(terms: BillingTerms | None, now: Callable[[], datetime]) -> Send | None:
    """Raises TermsInvalid."""
    if terms is None:
        return None
    if terms.webhook is None:
        return to_nobody
    sender = WebhookSender(terms.webhook, now)
    return lambda alert: sender.send(alert.alert_id, alert.document)


def to_nobody(_alert: Alert) -> None:
    """A receiver that is named later is not told of what was before."""
