"""Values of the gateway."""

from typing import Final, Literal

from pydantic import Field

from gateway.admin.settings import Settings as AdminSettingsSource
from gateway.settings import ProviderAddress, ReplicaAddress, Settings
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

# Where the chart has what these settings say; tests hold each to its place.
MANAGED: Final = {
    "host": "every address of the pod",
    "port": "gateway.port",
    "replicas": "gateway.upstreams",
    "providers": "gateway.providers",
    "replica_file": "never: gateway.upstreams",
    "replica_services": "pools",
    "replica_port_name": "the pools' Services' own",
    "kubernetes_namespace": "the release's namespace",
    "kubernetes_url": "the pod's own",
    "kubernetes_credentials": "the pod's own",
    "policy_file": "gateway.policies",
    "policy_url": "gateway.policies.url",
    "key_pepper": "gateway.keyPepper",
    "quota_url": "gateway.quotaUrl",
    "cache_url": "gateway.cacheUrl",
    "redis_ca_file": "gateway.redisCa",
    "redis_certificate_file": "gateway.redisCertificateSecret",
    "redis_certificate_key_file": "gateway.redisCertificateSecret",
    "spool_dir": "usage.spool",
    "gateway_id": "the pod's name",
    "kafka_bootstrap": "usage.kafka.bootstrap",
    "kafka_security": "usage.kafka.security",
    "kafka_ca_file": "usage.kafka.tls.ca",
    "kafka_certificate_file": "usage.kafka.tls.certificateSecret",
    "kafka_certificate_key_file": "usage.kafka.tls.certificateSecret",
    "kafka_sasl_mechanism": "usage.kafka.sasl.mechanism",
    "kafka_username": "usage.kafka.sasl.username",
    "kafka_password": "usage.kafka.sasl.password",
    "drain_timeout_s": "gateway.drain.timeoutS",
}


class GatewaySettings(
    settings_values("GatewaySettings", Settings, without=MANAGED)  # type: ignore[misc] # made
):
    """All but what the chart decides."""


ADMIN_MANAGED: Final = {
    "host": "every address of the pod",
    "port": "admin.port",
    "policy_url": "gateway.policies.url",
    "redis_ca_file": "gateway.redisCa",
    "redis_certificate_file": "gateway.redisCertificateSecret",
    "redis_certificate_key_file": "gateway.redisCertificateSecret",
    "policy_file": "never: gateway.policies.url",
    "key_pepper": "gateway.keyPepper",
    "static_tokens": "admin.staticTokens",
}


class AdminSettings(
    settings_values("AdminSettings", AdminSettingsSource, without=ADMIN_MANAGED)  # type: ignore[misc] # made
):
    """All but what the chart decides."""


class Upstream(Group):
    """An OpenAI-compatible server that the chart does not install."""

    name: str = Field(min_length=1, description="Stable: it places the server on the hash ring")
    url: str = Field(
        pattern=ReplicaAddress.model_fields["url"].metadata[0].pattern,
        description="Plain HTTP, with its port",
    )


class Provider(Group):
    """A server of another owner, which policies may name: in fallback chains and beside pools."""

    name: str = Field(
        pattern=ProviderAddress.model_fields["name"].metadata[0].pattern,
        description="Before the model in events and prices",
    )
    url: str = Field(
        pattern=r"^https?://[^/\s?#@]+(/[^\s?#]*)?$",  # the gateway looks more closely
        description="As for SDKs, with or without /v1; the port is its scheme's unless it is said",
    )
    api: Literal["openai", "anthropic"] = "openai"
    api_key: SecretKey
    models: dict[str, str] = Field(
        {}, description="Its names of the models that it serves beside replicas, by theirs"
    )
    weight: float = Field(
        1.0, gt=0, description="Of a replica's; 0.1: where ten times as much waits"
    )


class Policies(Group):
    """Tenants, limits and hashed keys, as ``pandal keys create`` writes them: no secrets."""

    url: SecretKey = Field(
        SecretKey(key="policy-url"),
        description="As quotaUrl; then the policy is there, live and with history, not in a file",
    )

    document: Object = Field(
        {"version": 0, "tenants": []},
        description="The policy document; edits are followed live",
        json_schema_extra={"properties": {"tenants": {"type": "array"}}},
    )
    existing_config_map: OptionalName = Field(
        "", description="One that another process keeps, with the key policies.json, in its place"
    )


class Drain(Group):
    pre_stop_s: int = Field(10, ge=0, description="Endpoints everywhere forget the pod meanwhile")
    timeout_s: int = Field(300, ge=0, description="Then streams that still run are ended")


class Service(Group):
    type: Literal["ClusterIP", "NodePort", "LoadBalancer"] = "ClusterIP"
    port: int = Field(80, ge=1, le=65_535)
    annotations: dict[str, str] = Field({}, description="Of cloud load balancers, for example")


class Ingress(Group):
    enabled: bool = False
    class_name: str = ""
    annotations: dict[str, str] = Field(
        {}, description="The controller must not buffer, nor time out below settings.answerTimeoutS"
    )
    hosts: list[str] = Field([], description="Each is served under /v1; empty: every one")
    tls: list[Object] = Field([], description="As in an Ingress")


class HttpRoute(Group):
    enabled: bool = Field(False, description="Of the Gateway API")
    parent_refs: list[Object] = Field([], description="Gateways that shall serve it")
    hostnames: list[str] = Field([], description="Empty: every one of the parent's")
    annotations: dict[str, str] = Field({}, description="Of the route")


class InFlightScaling(Group):
    enabled: bool = Field(
        False,
        description="On requests in flight; needs an adapter that serves pods' metrics",
    )
    min_replicas: int = Field(2, ge=1)
    max_replicas: int = Field(10, ge=1)
    target_in_flight: int = Field(200, ge=1, description="Requests of one gateway at once")
    metric: str = Field(
        "pandal_gateway_active_requests", min_length=1, description="As the adapter names it"
    )


class Gateway(Placement):
    replicas: int = Field(1, ge=0, description="Not written where a HorizontalPodAutoscaler does")
    image: Image = Image(repository="pandal/gateway")
    port: int = Field(8080, ge=1024, le=65_535, description="Of the pods")
    key_pepper: SecretKey = Field(
        SecretKey(existing_secret="pandal", key="key-pepper"),
        description="16 to 64 bytes that key the hashes of API keys",
    )
    quota_url: SecretKey = Field(
        SecretKey(existing_secret="pandal", key="quota-url"),
        description="redis://user:password@host:port of a Redis, a Valkey or a cluster's node, "
        "or redis+sentinel://user:password@host:port,host:port/service; "
        "over TLS rediss:// and rediss+sentinel://",
    )
    cache_url: SecretKey = Field(
        SecretKey(key="cache-url"),
        description="As quotaUrl, of another store: answers that are repeated; empty: none are",
    )
    redis_ca: SecretKey = Field(
        SecretKey(key="ca.crt"),
        description="Whom stores over TLS are known by; empty: public authorities",
    )
    redis_certificate_secret: OptionalName = Field(
        "", description="Of kubernetes.io/tls, for stores that ask for one; empty: there is none"
    )
    policies: Policies = Policies()
    upstreams: list[Upstream] = Field([], description="Servers beside the pools")
    providers: list[Provider] = Field([], description="Only whom a policy names gets its requests")
    drain: Drain = Drain()
    service: Service = Service()
    ingress: Ingress = Ingress()
    http_route: HttpRoute = HttpRoute()
    autoscaling: InFlightScaling = InFlightScaling()
    disruption: Disruption = Disruption()
    service_account: ServiceAccount = ServiceAccount()
    settings: GatewaySettings = Field(
        GatewaySettings(), description="Every other setting of the gateway"
    )


class KafkaSasl(Group):
    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "SCRAM-SHA-512"
    username: SecretKey = SecretKey(key="kafka-username")
    password: SecretKey = SecretKey(key="kafka-password")


class KafkaTls(Group):
    ca: SecretKey = Field(
        SecretKey(key="ca.crt"), description="Whom brokers are known by; empty: public authorities"
    )
    certificate_secret: OptionalName = Field(
        "", description="Of kubernetes.io/tls, for brokers that ask for one; empty: there is none"
    )


class Kafka(Group):
    bootstrap: str = Field("", description="host:port,host:port of the brokers")
    security: Literal["plaintext", "ssl", "sasl_plaintext", "sasl_ssl"] = Field(
        "plaintext", description="Kafka's security.protocol"
    )
    sasl: KafkaSasl = KafkaSasl()
    tls: KafkaTls = KafkaTls()


class Usage(Group):
    """The way of usage events from gateways to billing."""

    transport: Literal["spool", "kafka"] = Field(
        "spool", description="spool: billing reads the gateways' volume; kafka: topic usage.v1"
    )
    kafka: Kafka = Kafka()
    spool: Volume = Field(
        Volume(), description="More than one gateway needs ReadWriteMany, or Kafka and emptyDir"
    )


class Admin(Placement):
    """The admin API of policies and keys, on the gateway's image."""

    enabled: bool = Field(False, description="Needs gateway.policies.url")
    replicas: int = Field(1, ge=1)
    port: int = Field(8090, ge=1024, le=65_535)
    static_tokens: SecretKey = Field(
        SecretKey(key="static-tokens"),
        description="A JSON list of name, token and role; empty: only an identity provider's count",
    )
    clients: list[Object] = Field(
        [], description="Who may ask it, as a NetworkPolicy's peers; empty: nobody in the cluster"
    )
    service_account: ServiceAccount = ServiceAccount()
    settings: AdminSettings = Field(
        AdminSettings(), description="Every other setting of the admin API"
    )
