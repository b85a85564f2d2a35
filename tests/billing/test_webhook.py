"""A webhook's other side has an alert only when it says so, in time."""

import contextlib
import socket
import threading
from datetime import datetime
from pathlib import Path

import msgspec
import pytest

from billing.errors import TermsInvalid, WebhookFailed
from billing.terms import Webhook
from billing.webhook import WebhookSender
from tests.billing.usage_events import NOON
from tests.billing.webhook_receiver import SECRET, Receiver


def clock() -> datetime:
    return NOON


def test_a_redirect_is_no_delivery_and_is_not_followed(receiver: Receiver, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(SECRET)
    hook = Webhook(url=receiver.url, secret_file=str(tmp_path / "secret"))
    receiver.location = receiver.url
    for receiver.status in (301, 302, 307, 404):
        with pytest.raises(WebhookFailed, match=str(receiver.status)):
            WebhookSender(hook, clock).send("acme/month/2026-11/50", b"{}")
    assert len(receiver.calls) == 4
    receiver.status = 200
    WebhookSender(hook, clock).send("acme/März\n/2026-11/50", b"{}")
    assert receiver.calls[-1][0]["x-pandal-alert-id"] == "acme/M%C3%A4rz%0A/2026-11/50"


def test_a_receiver_that_never_ends_its_answer_is_left_at_the_deadline(tmp_path: Path) -> None:
    """Byte by byte, which a socket's own timeout takes for progress."""
    (tmp_path / "secret").write_bytes(SECRET)
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/"
        thread = threading.Thread(target=dribble, args=[server])
        thread.start()
        sender = WebhookSender(
            Webhook(url=url, secret_file=str(tmp_path / "secret")), clock, deadline_s=0.5
        )
        try:
            with pytest.raises(WebhookFailed):
                sender.send("acme/month/2026-11/50", b"{}")
        finally:
            server.shutdown(socket.SHUT_RDWR)  # wakes an accept
            thread.join()


def dribble(server: socket.socket) -> None:
    """Until the other side has gone."""
    with contextlib.suppress(OSError):
        connection, _ = server.accept()
        with connection:
            connection.sendall(b"HTTP/1.1 200 OK\r\nx-long: ")
            connection.settimeout(0.05)
            while True:
                connection.sendall(b"a")
                with contextlib.suppress(TimeoutError):
                    if not connection.recv(1 << 16):
                        return


@pytest.mark.parametrize(
    ("webhook", "message"),
    [
        ({"url": "file:///etc/passwd"}, "http"),
        ({"secret_file": "/no/such/file"}, "secret_file"),
        ({"secret_file": "/dev/null"}, "16 bytes"),
    ],
)
def test_a_webhook_that_cannot_be_is_refused(webhook: dict[str, object], message: str) -> None:
    sound = Webhook(url="http://127.0.0.1:1/", secret_file="/dev/null")
    with pytest.raises(TermsInvalid, match=message):
        WebhookSender(msgspec.structs.replace(sound, **webhook), clock)
