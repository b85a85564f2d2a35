"""How Kafka is spoken to: TLS, and who we are to it, as the client's arguments."""

import ssl
from typing import Any

from contracts.own_certificate import load_own_certificate
from gateway.settings import Settings


def client_arguments(settings: Settings) -> dict[str, Any]:  # of a client without types
    """Raises OSError for a file that cannot be read, or holds no certificate or key."""
    found: dict[str, Any] = {"security_protocol": settings.kafka_security.upper()}
    if settings.kafka_security.endswith("ssl"):
        found["ssl_context"] = _context(settings)
    if settings.kafka_security.startswith("sasl"):
        assert settings.kafka_username is not None, "Settings has checked it"
        assert settings.kafka_password is not None, "as of the name"
        found["sasl_mechanism"] = settings.kafka_sasl_mechanism
        found["sasl_plain_username"] = settings.kafka_username.get_secret_value()
        found["sasl_plain_password"] = settings.kafka_password.get_secret_value()
    return found


def _context(settings: Settings) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=settings.kafka_ca_file)
    if settings.kafka_certificate_file is not None:
        load_own_certificate(
            context, settings.kafka_certificate_file, settings.kafka_certificate_key_file
        )
    return context
