"""Certificates that tests make for servers on 127.0.0.1, each its own authority."""

import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Certificate:
    path: Path
    key: Path

    def server_context(self, client: "Certificate | None" = None) -> ssl.SSLContext:
        """``client``: the only one that is let in; None: everybody."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.path, self.key)
        if client is not None:
            context.load_verify_locations(client.path)
            context.verify_mode = ssl.CERT_REQUIRED
        return context


@dataclass(frozen=True)
class RedisFiles:
    """As settings have them."""

    redis_ca_file: Path | None = None
    redis_certificate_file: Path | None = None
    redis_certificate_key_file: Path | None = None


def self_signed(folder: Path, address: str = "127.0.0.1") -> Certificate:
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
         "-keyout", str(key), "-out", str(certificate), "-subj", f"/CN={address}",
         "-addext", f"subjectAltName=IP:{address}"],
        check=True, capture_output=True,
    )  # fmt: skip
    return Certificate(certificate, key)


def encrypted(certificate: Certificate, folder: Path) -> Path:
    """Its key, behind a passphrase."""
    path = folder / "encrypted.pem"
    subprocess.run(
        ["openssl", "pkey", "-in", str(certificate.key), "-aes256", "-passout", "pass:secret",
         "-out", str(path)],
        check=True, capture_output=True,
    )  # fmt: skip
    return path
