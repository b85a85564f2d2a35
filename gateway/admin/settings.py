"""Every knob of the admin API, read once from the environment (prefix ``ADMIN_``)."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from contracts import environment
from gateway.secret_settings import KeyPepper, OwnKeyFile, StoreUrl

PREFIX = "ADMIN_"


class StaticToken(BaseModel):
    """One that no identity provider made."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    name: str = Field(min_length=1)  # for the audit log
    token: SecretStr = Field(min_length=32)
    role: Literal["viewer", "operator", "owner"]


class Settings(BaseSettings):
    model_config = SettingsConfigDict(
        env_prefix=PREFIX, extra="forbid", frozen=True, hide_input_in_errors=True
    )

    host: str = "127.0.0.1"  # reachable from this machine only, unless someone says otherwise
    port: int = Field(default=8090, ge=0, le=65_535)  # 0: any free port, told in the log
    policy_url: StoreUrl | None = None  # as the gateways'; None: the policy is in policy_file
    redis_ca_file: Path | None = None  # PEM, of a rediss:// one; None: whom this machine trusts
    redis_certificate_file: Path | None = None  # PEM, with its chain; None: stores ask for none
    redis_certificate_key_file: OwnKeyFile | None = None
    policy_file: Path | None = Field(default=None, validate_default=True)
    key_pepper: KeyPepper  # as the gateways': keys are made with it
    static_tokens: tuple[StaticToken, ...] = ()  # JSON; none: only tokens of the provider count
    oidc_issuer: str | None = None  # https://..., as in its tokens; None: no provider
    oidc_audience: str = "pandal"  # tokens for others are refused
    oidc_jwks_url: str | None = None  # None: as the issuer's discovery document says
    oidc_roles_claim: str = "roles"  # a path, as realm_access.roles
    oidc_role_prefix: str = "pandal-"  # pandal-viewer, pandal-operator, pandal-owner
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @field_validator("policy_file")
    @classmethod
    def _policy_is_in_one_place(cls, value: Path | None, others: ValidationInfo) -> Path | None:
        if (value is None) == (others.data.get("policy_url") is None):
            raise ValueError("expected either a policy_file or a policy_url")
        return value


def unread_variables() -> Mapping[str, str]:
    """Variables of ours that are no setting, each with what to do about it."""
    return environment.unread_variables(os.environ, PREFIX, Settings.model_fields)
