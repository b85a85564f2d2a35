"""How Kafka is spoken to: TLS, and who we are to it, as the client's arguments."""

import ssl
from pathlib import Path
from typing import Any, Protocol

from pydantic import SecretStr

from billing.errors import SourceUnavailable
from contracts.own_certificate import load_own_certificate


class KafkaAccess(Protocol):
    """Of the service's settings, or a command's."""

    @property
    def kafka_security(self) -> str: ...

    @property
    def kafka_ca_file(self) -> Path | None: ...

    @property
    def kafka_certificate_file(self) -> Path | None: ...

    @property
    def kafka_certificate_key_file(self) -> Path | None: ...

    @property
    def kafka_sasl_mechanism(self) -> str: ...

    @property
    def kafka_username(self) -> SecretStr | None: ...

    @property
    def kafka_password(self) -> SecretStr | None: ...


def client_arguments(access: KafkaAccess) -> dict[str, Any]:  # of a client without types
    """Reads the certificates, each time anew.

    Raises SourceUnavailable for a file that cannot be read, or holds no certificate or key, and
    where brokers ask for a name and there is none.
    """
    found: dict[str, Any] = {"security_protocol": access.kafka_security.upper()}
    if access.kafka_security.endswith("ssl"):
        found["ssl_context"] = _context(access)
    if access.kafka_security.startswith("sasl"):
        if access.kafka_username is None or access.kafka_password is None:
            raise SourceUnavailable("kafka: SASL needs a name and a password")
        found["sasl_mechanism"] = access.kafka_sasl_mechanism
        found["sasl_plain_username"] = access.kafka_username.get_secret_value()
        found["sasl_plain_password"] = access.kafka_password.get_secret_value()
    return found


def _context(access: KafkaAccess) -> ssl.SSLContext:
    own = access.kafka_certificate_file
    try:
        context = ssl.create_default_context(cafile=access.kafka_ca_file)
        if own is not None:
            load_own_certificate(context, own, access.kafka_certificate_key_file)
    except OSError as exc:
        raise SourceUnavailable(f"kafka's certificates: {exc.strerror}") from exc
    return context
