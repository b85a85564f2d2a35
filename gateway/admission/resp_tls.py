"""TLS to the quota store: whom it is known by, and why one is not spoken to."""

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gateway.errors import QuotaRefused


def client_context(ca_file: Path | None) -> ssl.SSLContext:
    """Reads the file anew.  Raises QuotaRefused where it cannot be read, or holds no certificate.

    ``None``: whom this machine trusts.
    """
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as exc:
        raise QuotaRefused("CA file", exc.strerror) from exc


@contextmanager
def told_refusals() -> Iterator[None]:
    """Raises QuotaRefused where the other one is not whom we know, or speaks no TLS."""
    try:
        yield
    except ssl.SSLCertVerificationError as exc:
        raise QuotaRefused("certificate", exc.verify_message) from exc
    except ssl.SSLError as exc:
        raise QuotaRefused("TLS", exc.reason) from exc
