"""TLS to the quota store: whom it is known by, who we are, and why one is not spoken to."""

import ssl
from collections.abc import Iterator
from contextlib import contextmanager

from contracts.own_certificate import load_own_certificate
from gateway.errors import QuotaRefused, QuotaUnanswered
from gateway.resp_address import StoreTls


def client_context(tls: StoreTls) -> ssl.SSLContext:
    """Reads the files anew.  Raises QuotaRefused where one cannot be read, or is none."""
    try:
        context = ssl.create_default_context(cafile=tls.ca_file)
    except OSError as exc:
        raise QuotaRefused("CA file", exc.strerror) from exc
    if tls.certificate_file is not None:
        try:
            load_own_certificate(context, tls.certificate_file, tls.key_file)
        except OSError as exc:
            raise QuotaRefused("own certificate", exc.strerror) from exc
    return context


@contextmanager
def told_refusals() -> Iterator[None]:
    """Raises QuotaRefused where the other one is not whom we know, speaks no TLS, or knows us not.

    The last is said after our side of the handshake, in place of the first answer.
    """
    try:
        yield
    except ssl.SSLCertVerificationError as exc:
        raise QuotaRefused("certificate", exc.verify_message) from exc
    except ssl.SSLError as exc:
        raise QuotaRefused("TLS", exc.reason) from exc
    except QuotaUnanswered as exc:
        if not isinstance(exc.__cause__, ssl.SSLError):
            raise
        raise QuotaRefused("TLS", exc.__cause__.reason) from exc
