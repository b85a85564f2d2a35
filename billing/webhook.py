"""Tells alerts to a URL, signed, until it says that it has them.

``x-pandal-signature: t=SECONDS,v1=HEX``: HMAC-SHA256 of ``SECONDS.BODY`` under the shared secret,
so a receiver can tell who sent it and refuse what is old.  At least once: ``x-pandal-alert-id``
(percent-encoded where it is no plain text) is the same each time.  Only a status of 2xx says that
it has it: a redirect would take the signature to somebody else.
"""

import hashlib
import hmac
import http.client
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from threading import Event, Timer
from typing import Final
from urllib.parse import quote, urlsplit

from billing.errors import AlertRefused, TermsInvalid, WebhookFailed
from billing.terms import Webhook

DEADLINE_S: Final = 5.0  # of one alert, whole; a name server keeps its own time
_MIN_SECRET_BYTES: Final = 16


class WebhookSender:
    """Raises TermsInvalid for a URL or secret that cannot be."""

    def __init__(
        self, webhook: Webhook, now: Callable[[], datetime], *, deadline_s: float = DEADLINE_S
    ) -> None:
        self._url = urlsplit(webhook.url)
        if self._url.scheme not in ("http", "https") or not self._url.hostname:
            raise TermsInvalid("terms: webhook.url: expected http:// or https://, and a host")
        try:
            self._port = self._url.port
            self._secret = Path(webhook.secret_file).read_bytes().strip()
        except ValueError as exc:
            raise TermsInvalid(f"terms: webhook.url: {exc}") from exc
        except OSError as exc:
            raise TermsInvalid(f"terms: webhook.secret_file: {exc}") from exc
        if len(self._secret) < _MIN_SECRET_BYTES:
            raise TermsInvalid(
                f"terms: webhook.secret_file: expected {_MIN_SECRET_BYTES} bytes at least"
            )
        self._now = now
        self._deadline_s = deadline_s

    def send(self, alert_id: str, body: bytes) -> None:
        """Blocks, within a deadline.  Raises AlertRefused; WebhookFailed if nobody answers."""
        at_s = int(self._now().timestamp())
        headers = {
            "content-type": "application/json",
            "x-pandal-alert-id": quote(alert_id),
            "x-pandal-signature": f"t={at_s},v1={signature(self._secret, at_s, body)}",
        }
        try:
            status = self._status(body, headers)
        except (OSError, http.client.HTTPException, ValueError) as exc:
            raise WebhookFailed(f"webhook: {type(exc).__name__}") from exc
        if not 200 <= status < 300:
            raise AlertRefused(f"webhook: status {status}")

    def _status(self, body: bytes, headers: dict[str, str]) -> int:
        path = self._url.path or "/"
        target = f"{path}?{self._url.query}" if self._url.query else path
        with closing(self._connection()) as connection:
            connection.connect()
            with _deadline(connection.sock, self._deadline_s):
                connection.request("POST", target, body, headers)
                status = connection.getresponse().status
        return status

    def _connection(self) -> http.client.HTTPConnection:
        is_tls = self._url.scheme == "https"
        kind = http.client.HTTPSConnection if is_tls else http.client.HTTPConnection
        return kind(self._url.hostname or "", self._port, timeout=self._deadline_s)


@contextmanager
def _deadline(connected: socket.socket, deadline_s: float) -> Iterator[None]:
    """A socket's own timeout begins anew with every byte.  Raises TimeoutError."""
    is_over = Event()

    def cut() -> None:
        is_over.set()
        with suppress(OSError):
            connected.shutdown(socket.SHUT_RDWR)

    timer = Timer(deadline_s, cut)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
    if is_over.is_set():
        raise TimeoutError


def signature(secret: bytes, at_s: int, body: bytes) -> str:
    return hmac.new(secret, b"%d.%b" % (at_s, body), hashlib.sha256).hexdigest()
