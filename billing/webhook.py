"""Tells alerts to a URL, signed, until it says that it has them.

``x-pandal-signature: t=SECONDS,v1=HEX``: HMAC-SHA256 of ``SECONDS.BODY`` under the shared secret,
so a receiver can tell who sent it and refuse what is old.  At least once: ``x-pandal-alert-id`` is
the same each time.
"""

import hashlib
import hmac
import urllib.error
import urllib.request
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from billing.errors import TermsInvalid, WebhookFailed
from billing.terms import Webhook

_TIMEOUT_S: Final = 5.0
_MIN_SECRET_BYTES: Final = 16


class WebhookSender:
    """Raises TermsInvalid for a URL or secret that cannot be."""

    def __init__(self, webhook: Webhook, now: Callable[[], datetime]) -> None:
        if urlsplit(webhook.url).scheme not in ("http", "https"):
            raise TermsInvalid("terms: webhook.url: expected http:// or https://")
        try:
            self._secret = Path(webhook.secret_file).read_bytes().strip()
        except OSError as exc:
            raise TermsInvalid(f"terms: webhook.secret_file: {exc}") from exc
        if len(self._secret) < _MIN_SECRET_BYTES:
            raise TermsInvalid(
                f"terms: webhook.secret_file: expected {_MIN_SECRET_BYTES} bytes at least"
            )
        self._url = webhook.url
        self._now = now

    def send(self, alert_id: str, body: bytes) -> None:
        """Blocks, within a deadline.  Raises WebhookFailed."""
        at_s = int(self._now().timestamp())
        request = urllib.request.Request(
            self._url,
            data=body,
            headers={
                "content-type": "application/json",
                "x-pandal-alert-id": alert_id,
                "x-pandal-signature": f"t={at_s},v1={signature(self._secret, at_s, body)}",
            },
        )
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S):
                return
        except (urllib.error.URLError, OSError, ValueError) as exc:
            raise WebhookFailed(f"webhook: {type(exc).__name__}") from exc


def signature(secret: bytes, at_s: int, body: bytes) -> str:
    return hmac.new(secret, b"%d.%b" % (at_s, body), hashlib.sha256).hexdigest()
