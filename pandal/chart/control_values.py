"""Values of the autoscaler and of billing."""

from typing import Final, Literal

from pydantic import Field

from autoscaler.settings import Settings as AutoscalerSettingsSource
from billing.settings import Settings as BillingSettingsSource
from pandal.chart.settings_fields import settings_values
from pandal.chart.shared_values import (
    Disruption,
    Group,
    Image,
    Object,
    OptionalName,
    Placement,
    SecretKey,
    ServiceAccount,
    Volume,
)

AUTOSCALER_MANAGED: Final = {
    "namespace": "the release's namespace",
    "kubeconfig": "never: it is its service account",
    "identity": "the pod's name",
    "lease_name": "made of the release's name",
    "host": "every address of the pod",
    "port": "autoscaler.port",
}


class AutoscalerSettings(
    settings_values("AutoscalerSettings", AutoscalerSettingsSource, without=AUTOSCALER_MANAGED)  # type: ignore[misc] # made
):
    """All but what the chart decides."""


BILLING_MANAGED: Final = {
    "ledger_url": "billing.ledger",
    "spool_dir": "usage.spool",
    "kafka_bootstrap": "usage.kafka.bootstrap",
    "kafka_security": "usage.kafka.security",
    "kafka_ca_file": "usage.kafka.tls.ca",
    "kafka_certificate_file": "usage.kafka.tls.certificateSecret",
    "kafka_certificate_key_file": "usage.kafka.tls.certificateSecret",
    "kafka_sasl_mechanism": "usage.kafka.sasl.mechanism",
    "kafka_username": "usage.kafka.sasl.username",
    "kafka_password": "usage.kafka.sasl.password",
    "price_book": "billing.prices",
    "terms": "billing.terms",
    "quota_url": "gateway.quotaUrl",
    "redis_ca_file": "gateway.redisCa",
    "redis_certificate_file": "gateway.redisCertificateSecret",
    "redis_certificate_key_file": "gateway.redisCertificateSecret",
    "policy_file": "gateway.policies, if billing.keepsCounters",
    "usage_journals": "nothing: each replica keeps its journal on a volume of its own",
    "port": "billing.port",
    "host": "the pod's",
}


class BillingSettings(
    settings_values("BillingSettings", BillingSettingsSource, without=BILLING_MANAGED)  # type: ignore[misc] # made
):
    """All but what the chart decides."""


class Autoscaler(Placement):
    enabled: bool = Field(True, description="Installed where a pool is autoscaled")
    replicas: int = Field(2, ge=1, description="One leads, the others follow and take over")
    image: Image = Image(repository="pandal/autoscaler")
    port: int = Field(9100, ge=1024, le=65_535, description="Of metrics and probes")
    disruption: Disruption = Disruption()
    service_account: ServiceAccount = ServiceAccount()
    settings: AutoscalerSettings = Field(
        AutoscalerSettings(), description="Every other setting of the autoscaler"
    )


class Ledger(Group):
    """SQLite on a volume of its own, unless a URL is named."""

    url: SecretKey = Field(
        SecretKey(key="ledger-url"), description="postgresql://user:password@host/database"
    )
    volume: Volume = Volume()


class Prices(Group):
    document: str = Field("", description="TOML; empty: the packaged book. Edits are followed live")
    existing_config_map: OptionalName = Field("", description="With the key prices.toml")


class Terms(Group):
    """Time zones of tenants, and budgets to be alerted of."""

    document: Object = Field({}, description="Empty: there are none. Edits are followed live")
    existing_config_map: OptionalName = Field("", description="With the key terms.yaml")
    webhook_secret: SecretKey = Field(
        SecretKey(key="webhook"), description="It lies in /etc/pandal/webhook, by its key"
    )


class Billing(Placement):
    enabled: bool = True
    replicas: int = Field(1, ge=0, description="More than one needs Kafka and a ledger by URL")
    image: Image = Image(repository="pandal/billing")
    port: int = Field(9200, ge=1024, le=65_535, description="Of metrics and probes")
    ledger: Ledger = Ledger()
    prices: Prices = Prices()
    terms: Terms = Terms()
    keeps_counters: bool = Field(
        True,
        description="Of budgets, after the quota store was lost; not with gateway.policies.url",
    )
    service_account: ServiceAccount = ServiceAccount()
    settings: BillingSettings = Field(
        BillingSettings(), description="Every other setting of billing"
    )


class Scraping(Group):
    enabled: bool = Field(False, description="PodMonitors; needs the Prometheus operator")
    interval: str = Field("15s", pattern="^[0-9]+(ms|s|m)$")
    labels: dict[str, str] = Field({}, description="That the Prometheus selects by")


class Objectives(Group):
    availability: float = Field(0.999, gt=0, lt=1, description="Of requests, answered without 5xx")
    ttft: float = Field(0.99, gt=0, lt=1, description="Of requests, with their first token in time")
    ttft_s: Literal["0.25", "0.5", "2.5"] = Field("2.5", description="In time: a bucket's bound")


class Alerts(Group):
    enabled: bool = Field(False, description="A PrometheusRule; needs the Prometheus operator")
    labels: dict[str, str] = Field({}, description="That the Prometheus selects by")
    runbooks: str = Field(
        "", description="URL where docs/runbooks can be read; alerts must link to it"
    )
    objectives: Objectives = Objectives()


class Dashboards(Group):
    enabled: bool = Field(False, description="ConfigMaps that Grafana's sidecar finds")
    labels: dict[str, str] = Field(
        {"grafana_dashboard": "1"}, description="That the sidecar looks for"
    )
    annotations: dict[str, str] = Field({}, description="A folder, for example")


class Monitoring(Group):
    scraping: Scraping = Scraping()
    alerts: Alerts = Alerts()
    dashboards: Dashboards = Dashboards()


class NetworkPolicy(Group):
    enabled: bool = Field(True, description="Who may reach which pod of the release")
    clients: list[Object] = Field(
        [{"namespaceSelector": {}}], description="Who may ask gateways; from outside: an ipBlock"
    )
    scrapers: list[Object] = Field(
        [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}],
        description="Who may read metrics, on the ports where replicas also take requests",
    )


class StreamTest(Group):
    """``helm test``: one streamed request through the gateway."""

    enabled: bool = True
    api_key: SecretKey = Field(
        SecretKey(key="api-key"), description="Empty: asks only who is ready"
    )
    model: str = Field("", description="Empty: the first pool's")
