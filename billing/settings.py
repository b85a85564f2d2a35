"""Every knob of billing, read once from the environment (``BILLING_...``)."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, Field, SecretStr, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from contracts import environment
from contracts.names import USAGE_TOPIC

PREFIX: Final = "BILLING_"

OwnKeyFile = Annotated[Path, AfterValidator(environment.beside_certificate)]


class Settings(BaseSettings):
    model_config = SettingsConfigDict(
        env_prefix=PREFIX, extra="forbid", frozen=True, hide_input_in_errors=True
    )

    # A database URL may hold a password.  No default: a ledger must not appear where nobody looks.
    ledger_url: SecretStr
    # None: events come from Kafka.
    spool_dir: Path | None = None
    # How long a segment whose events are all in the ledger is kept after its last line: a ledger
    # that is put back from last week's backup catches up by reading it again.
    spool_keep_s: float = Field(default=7 * 86_400.0, ge=0)
    # None: events come from the spool.  Set, it wins over the spool: gateways then ship to Kafka.
    kafka_bootstrap: str | None = None
    # How brokers are spoken to, by Kafka's own names.
    kafka_security: Literal["plaintext", "ssl", "sasl_plaintext", "sasl_ssl"] = "plaintext"
    kafka_ca_file: Path | None = None  # PEM; None: whom this machine trusts
    kafka_certificate_file: Path | None = None  # PEM, with its chain; None: brokers ask for none
    kafka_certificate_key_file: OwnKeyFile | None = None
    kafka_sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "SCRAM-SHA-512"
    kafka_username: SecretStr | None = None
    kafka_password: SecretStr | None = None
    kafka_topic: str = USAGE_TOPIC
    # Only spreads partitions over consumers; where to read on is in the ledger.
    kafka_group: str = "pandal-billing"
    # How long a dead consumer's partitions stay unread.  Brokers refuse less than 6 s by default.
    kafka_session_timeout_s: float = Field(default=10.0, gt=0)
    # Longer than a broker's restart, shorter than anyone's patience with a bill.
    kafka_stall_timeout_s: float = Field(default=60.0, ge=5)
    # None: the packaged price book.
    price_book: Path | None = None
    # What was agreed with tenants: time zones, budgets to be alerted of, a webhook.  None: nothing.
    terms: Path | None = None
    # Where alerts are told beside the log and the webhook.  None: to no topic.
    alerts_topic: str | None = None
    # The gateways' quota store, whose totals are compared with the ledger.  None: nobody does that.
    quota_url: SecretStr | None = None
    redis_ca_file: Path | None = None  # PEM, of a rediss:// one; None: whom this machine trusts
    redis_certificate_file: Path | None = None  # PEM, with its chain; None: stores ask for none
    redis_certificate_key_file: OwnKeyFile | None = None
    # The gateways' policy document: with it spend counters are kept from standing below the ledger
    # after the store was lost.  None: nobody does that.
    policy_file: Path | None = None
    # How often all accounts are compared, as `pandal audit` does.  0: only when somebody asks.
    reconcile_interval_s: float = Field(default=3_600.0, ge=0)
    # How old a replica's record without an event must be to be posted: brokers may be away as long.
    reconcile_grace_s: float = Field(default=3_600.0, ge=0)
    # How far back events are compared one by one: each is looked at twice.
    reconcile_span_s: float = Field(default=7_200.0, gt=0)
    # The folder that has the replicas' journals, one folder each.  None: they are not to be seen.
    usage_journals: Path | None = None
    # Of metrics and probes.  0: any free port, told in the log.  None: nobody asks.
    port: int | None = Field(default=None, ge=0, le=65_535)
    host: str = "127.0.0.1"  # reachable from this machine only, unless someone says otherwise
    # A person who has just sent a request should find its line in the ledger.
    poll_interval_s: float = Field(default=0.2, gt=0)
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @model_validator(mode="after")
    def _counters_have_a_store(self) -> Self:
        if self.policy_file is not None and self.quota_url is None:
            raise ValueError("BILLING_POLICY_FILE needs BILLING_QUOTA_URL")
        return self

    @model_validator(mode="after")
    def _kafka_is_told_who_we_are(self) -> Self:
        if self.kafka_security.startswith("sasl") and None in (
            self.kafka_username,
            self.kafka_password,
        ):
            raise ValueError("kafka_security with SASL needs kafka_username and kafka_password")
        return self

    @model_validator(mode="after")
    def _has_a_source(self) -> Self:
        if self.alerts_topic is not None and self.kafka_bootstrap is None:
            raise ValueError("BILLING_ALERTS_TOPIC needs BILLING_KAFKA_BOOTSTRAP")
        if self.spool_dir is None and self.kafka_bootstrap is None:
            raise ValueError("set BILLING_SPOOL_DIR or BILLING_KAFKA_BOOTSTRAP")
        return self


class UpgradeSettings(BaseSettings):
    """Of ``billing.upgrade``, which posts nothing: whatever else billing is told is not its own."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, extra="ignore", frozen=True, hide_input_in_errors=True
    )

    ledger_url: SecretStr
    log_level: Literal["debug", "info", "warning", "error"] = "info"


def unread_variables() -> Mapping[str, str]:
    """Variables of ours that are no setting, each with what to do about it."""
    return environment.unread_variables(os.environ, PREFIX, Settings.model_fields)
