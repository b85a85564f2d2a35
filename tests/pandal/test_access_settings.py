"""What stores and brokers know us by, told each process by settings of its own, all alike."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from pydantic_settings import BaseSettings

from billing.settings import Settings as BillingSettings
from gateway.admin.settings import Settings as AdminSettings
from gateway.settings import Settings as GatewaySettings
from pandal.errors import BadOption
from pandal.settings import CommandSettings, told_settings

PEPPER = "p" * 43
GATEWAY = {"key_pepper": PEPPER, "policy_file": "/p", "quota_url": "unix:///q", "spool_dir": "/s"}
BILLING = {"ledger_url": "sqlite:////l", "spool_dir": "/s"}
ADMIN = {"key_pepper": PEPPER, "policy_file": "/p"}
PAIRS = [
    (GatewaySettings, GATEWAY, "redis_certificate"),
    (GatewaySettings, GATEWAY, "kafka_certificate"),
    (AdminSettings, ADMIN, "redis_certificate"),
    (BillingSettings, BILLING, "redis_certificate"),
    (BillingSettings, BILLING, "kafka_certificate"),
    (CommandSettings, {}, "redis_certificate"),
    (CommandSettings, {}, "BILLING_KAFKA_CERTIFICATE"),
]


def suffixed(prefix: str, suffix: str) -> str:
    return prefix + (suffix.upper() if prefix.isupper() else suffix)


@pytest.mark.parametrize(("kind", "others", "prefix"), PAIRS)
def test_a_key_needs_its_certificate(
    kind: type[BaseSettings], others: dict[str, Any], prefix: str
) -> None:
    key, certificate = suffixed(prefix, "_key_file"), suffixed(prefix, "_file")
    with pytest.raises(ValidationError) as refused:
        kind(**others, **{key: "/key.pem"})
    (fault,) = refused.value.errors()
    assert fault["loc"] == (key,)
    assert certificate.lower().removeprefix("billing_") in fault["msg"]
    both = kind(**others, **{certificate: "/own.pem", key: "/key.pem"})
    assert Path("/key.pem") in both.model_dump().values()
    kind(**others, **{certificate: "/own.pem"})  # which holds the key as well


def test_a_commands_bad_variables_are_named_and_not_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PANDAL_REDIS_CERTIFICATE_KEY_FILE", "/hunter2")
    monkeypatch.setenv("BILLING_KAFKA_SECURITY", "hunter2")
    with pytest.raises(BadOption) as refused:
        told_settings()
    told = str(refused.value)
    assert "PANDAL_REDIS_CERTIFICATE_KEY_FILE: " in told
    assert "; " in told
    assert "BILLING_KAFKA_SECURITY: " in told
    assert "hunter2" not in told
