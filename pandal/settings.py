"""The environment of the command line, read once per command."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, AliasChoices, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from contracts.environment import (
    beside_certificate,
    nearest_variable,
    unknown_variables,
    variable_of,
)
from contracts.faults import plain_words
from pandal.errors import BadOption

PREFIX: Final = "PANDAL_"
KAFKA_BOOTSTRAP: Final = f"{PREFIX}KAFKA_BOOTSTRAP"
QUOTA_URL: Final = f"{PREFIX}QUOTA_URL"

OwnKeyFile = Annotated[Path, AfterValidator(beside_certificate)]


class CommandSettings(BaseSettings):
    model_config = SettingsConfigDict(
        env_prefix=PREFIX, frozen=True, extra="forbid", env_ignore_empty=True
    )

    # A broker (HOST:PORT[,...]) to carry usage events.  None: billing reads the gateway's spool,
    # which needs no broker on one machine.
    kafka_bootstrap: str | None = None
    # How it is spoken to: as billing does, by the same variables.
    kafka_security: Literal["plaintext", "ssl", "sasl_plaintext", "sasl_ssl"] = Field(
        "plaintext", validation_alias="BILLING_KAFKA_SECURITY"
    )
    kafka_ca_file: Path | None = Field(None, validation_alias="BILLING_KAFKA_CA_FILE")
    kafka_certificate_file: Path | None = Field(
        None, validation_alias="BILLING_KAFKA_CERTIFICATE_FILE"
    )
    kafka_certificate_key_file: OwnKeyFile | None = Field(
        None, validation_alias="BILLING_KAFKA_CERTIFICATE_KEY_FILE"
    )
    kafka_sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = Field(
        "SCRAM-SHA-512", validation_alias="BILLING_KAFKA_SASL_MECHANISM"
    )
    kafka_username: SecretStr | None = Field(None, validation_alias="BILLING_KAFKA_USERNAME")
    kafka_password: SecretStr | None = Field(None, validation_alias="BILLING_KAFKA_PASSWORD")
    # The key that `pandal bench` sends where no file names one.
    bench_api_key: SecretStr | None = None
    # The admin API of the gateways whose policies and keys are meant, and a token of its.
    # None: those of the local fleet, in its data directory.
    admin_url: str | None = None
    admin_token: SecretStr | None = None
    # The quota store of those gateways, as their GATEWAY_QUOTA_URL: dry runs read its record.
    quota_url: SecretStr | None = None
    redis_ca_file: Path | None = None  # PEM, of a rediss:// one; None: whom this machine trusts
    redis_certificate_file: Path | None = None  # PEM, with its chain; None: stores ask for none
    redis_certificate_key_file: OwnKeyFile | None = None
    # The ledger that billing commands mean, if it is not the one in the data directory.  Here, and
    # not on a command line, where others read it: it may hold a password.
    ledger_url: SecretStr | None = None
    # Where model files are kept.  None: the replica's own default.
    model_cache: Path | None = None
    # What the fleet bills by, as its billing reads it.  None: the packaged price book.
    price_book: Path | None = Field(default=None, validation_alias="BILLING_PRICE_BOOK")
    # The XDG base directory; None: ~/.local/share, as its specification says.
    xdg_data_home: Path | None = Field(default=None, validation_alias="XDG_DATA_HOME")

    # What `pandal policy edit` opens.
    editor: str = Field(default="vi", validation_alias=AliasChoices("VISUAL", "EDITOR"))

    def default_data_dir(self) -> Path:
        """``$XDG_DATA_HOME/pandal``; a relative value is ignored, as the specification asks."""
        home = self.xdg_data_home
        if home is None or not home.is_absolute():
            home = Path.home() / ".local" / "share"
        return home / "pandal"


def told_settings() -> CommandSettings:
    """Raises BadOption that names each variable, without what was given: it may be a secret."""
    try:
        return CommandSettings()
    except ValidationError as exc:
        faults = exc.errors(include_input=False, include_url=False)
        told = "; ".join(f"{_variable(f['loc'])}: {plain_words(f)}" for f in faults)
        raise BadOption(told) from None


def _variable(location: tuple[int | str, ...]) -> str:
    """pydantic knows a field by its variable where that has a prefix of its own."""
    is_ours = location[0] in CommandSettings.model_fields
    return variable_of(PREFIX if is_ours else "", location)


def unread_variables() -> Iterator[str]:
    """One line each, for people.  A service would refuse to start; a command does its work."""
    known = [name for name, f in CommandSettings.model_fields.items() if f.validation_alias is None]
    for name in unknown_variables(os.environ, PREFIX, known):
        nearest = nearest_variable(name, PREFIX, known)
        hint = "" if nearest is None else f"; did you mean {nearest}?"
        yield f"{name} is no setting of pandal's and is ignored{hint}"


def environment_value(name: str) -> str | None:
    """For variables that a user's file names; empty counts as not set, as in the settings."""
    return os.environ.get(name) or None


def inherited_environment() -> dict[str, str]:
    """All of it: ``fleet`` says which child gets what."""
    return dict(os.environ)
