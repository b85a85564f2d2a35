"""Who we are to a server that asks for a certificate."""

import errno
import ssl
from pathlib import Path


def load_own_certificate(context: ssl.SSLContext, certificate: Path, key: Path | None) -> None:
    """``key``: None: in the certificate's file.

    Raises OSError for a file that cannot be read, or holds none, and for an encrypted key: OpenSSL
    would ask the terminal for its passphrase, and wait.
    """
    context.load_cert_chain(certificate, key, password=_no_passphrase)


def _no_passphrase() -> str:
    raise OSError(errno.EINVAL, "its key is encrypted")
