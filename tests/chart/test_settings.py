"""Values become settings: as Helm writes them, and as the services read them."""

import copy
from typing import Any

import pytest
import yaml
from pydantic import BaseModel, ValidationError
from pydantic_settings import BaseSettings

from autoscaler.settings import Settings as AutoscalerSettings
from billing.settings import Settings as BillingSettings
from gateway.admin.settings import Settings as AdminSettings
from gateway.settings import Settings as GatewaySettings
from pandal.chart import control_values, gateway_values, pool_values
from replica.settings import Settings as ReplicaSettings
from tests.chart import manifests
from tests.chart.conftest import Written
from tests.support.helm import Helm

OTHERS: dict[type, tuple[Any, ...]] = {bool: (True, False), str: ("other", "info", "debug")}
NUMBERS = (200, 7, 4096, 1 << 33, 0.75, 0.96)
SECRETS = {
    "ADMIN_KEY_PEPPER": "0123456789abcdef",
    "ADMIN_POLICY_URL": "redis://quota:6379",
    "GATEWAY_KEY_PEPPER": "0123456789abcdef",
    "GATEWAY_QUOTA_URL": "redis://quota:6379",
    "GATEWAY_KAFKA_USERNAME": "name",
    "GATEWAY_KAFKA_PASSWORD": "word",
    "BILLING_KAFKA_USERNAME": "name",
    "BILLING_KAFKA_PASSWORD": "word",
    "BILLING_QUOTA_URL": "redis://quota:6379",
    "BILLING_LEDGER_URL": "postgresql://ledger",
}


def changed(group: type[BaseModel]) -> dict[str, Any]:
    """Each field with a value that is not its default, as values spell it."""
    return {f.alias or name: _another(group, name) for name, f in group.model_fields.items()}


def _another(group: type[BaseModel], name: str) -> Any:
    field = group.model_fields[name]
    default = getattr(field.default, "value", field.default)
    enumerated = getattr(field.annotation, "__members__", {}).values()
    literals = getattr(field.annotation, "__args__", ())
    names = [text for text in literals if isinstance(text, str)]
    candidates = [
        *(member.value for member in enumerated), *names, *OTHERS.get(type(default), ()),
        *NUMBERS, {"alias": "model"}, "replicas:8000", "http://host:4318", ["other"],
        {"replica": {"host": "10.0.0.1", "port": 5558, "replay_port": 5559}},
    ]  # fmt: skip
    for candidate in candidates:
        if candidate != default and not _is_refused(group, name, candidate):
            return candidate
    raise AssertionError(f"no other value for {name}")


def _is_refused(group: type[BaseModel], name: str, value: Any) -> bool:
    try:
        group(**{name: value})
    except ValidationError:
        return True
    return False


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, BaseModel):
        return value.model_dump()
    return list(value) if isinstance(value, tuple) else getattr(value, "value", value)


REDIS = {
    "redisCa": {"existingSecret": "authority", "key": "redis.pem"},
    "redisCertificateSecret": "redis-client",
}
KAFKA = {
    "bootstrap": "k:9092",
    "security": "sasl_ssl",
    "sasl": {
        "mechanism": "PLAIN",
        "username": {"existingSecret": "kafka"},
        "password": {"existingSecret": "kafka"},
    },
    "tls": {"ca": {"existingSecret": "authority", "key": "ca.pem"}, "certificateSecret": "client"},
}
ALL_PARTS: dict[str, Any] = {
    "poolDefaults": {"autoscaling": {"enabled": True}},
    "gateway": {"policies": {"url": {"existingSecret": "store"}}},
    "admin": {"enabled": True},
    "usage": {"transport": "kafka", "kafka": {"bootstrap": "k:9092"}},
}
CASES = [
    ("gateway", "r-pandal-gateway", "GATEWAY_", GatewaySettings, gateway_values.GatewaySettings),
    ("admin", "r-pandal-admin", "ADMIN_", AdminSettings, gateway_values.AdminSettings),
    ("poolDefaults", "r-pandal-smollm2", "REPLICA_", ReplicaSettings, pool_values.ReplicaSettings),
    (
        "autoscaler", "r-pandal-autoscaler", "AUTOSCALER_", AutoscalerSettings,
        control_values.AutoscalerSettings,
    ),
    ("billing", "r-pandal-billing", "BILLING_", BillingSettings, control_values.BillingSettings),
]  # fmt: skip


@pytest.fixture(scope="module")
def set_and_unset(helm4: Helm, tmp_path_factory: pytest.TempPathFactory) -> list[list[Any]]:
    """What is rendered with every setting changed, and with none."""
    values = copy.deepcopy(ALL_PARTS)
    for place, _, _, _, group in CASES:
        values.setdefault(place, {})["settings"] = changed(group)
    found = []
    for told in (values, ALL_PARTS):
        path = tmp_path_factory.mktemp("values") / "values.yaml"
        path.write_text(yaml.safe_dump(told))
        found.append(helm4.template([path]))
    return found


@pytest.mark.parametrize(("place", "name", "prefix", "settings", "group"), CASES)
def test_every_setting_arrives_as_it_was_set(
    set_and_unset: list[list[Any]],
    monkeypatch: pytest.MonkeyPatch,
    place: str,
    name: str,
    prefix: str,
    settings: type[BaseSettings],
    group: type[BaseModel],
) -> None:
    wanted = changed(group)
    found = _read(set_and_unset[0], name, prefix, settings, monkeypatch)
    for field, info in group.model_fields.items():
        assert plain(getattr(found, field)) == wanted[info.alias or field], field


@pytest.mark.parametrize(("place", "name", "prefix", "settings", "group"), CASES)
def test_a_default_stays_the_services_own(
    set_and_unset: list[list[Any]],
    monkeypatch: pytest.MonkeyPatch,
    place: str,
    name: str,
    prefix: str,
    settings: type[BaseSettings],
    group: type[BaseModel],
) -> None:
    found = _read(set_and_unset[1], name, prefix, settings, monkeypatch)
    for field in group.model_fields:
        assert getattr(found, field) == settings.model_fields[field].default, field


def _read(
    objects: list[Any],
    name: str,
    prefix: str,
    settings: type[BaseSettings],
    monkeypatch: pytest.MonkeyPatch,
) -> BaseSettings:
    """As the service would, in the pod: from all of its variables, and no other."""
    deployment = manifests.one(objects, "Deployment", name)
    told = manifests.environment(objects, deployment["spec"]["template"]["spec"])
    variables = {key: value for key, value in told.items() if key.startswith(prefix)}
    assert set(variables) <= {f"{prefix}{field}".upper() for field in settings.model_fields}
    spec = deployment["spec"]["template"]["spec"]
    secret = {name: SECRETS[name] for name in manifests.secret_variables(spec) if name in SECRETS}
    for key, value in {**secret, **variables}.items():
        monkeypatch.setenv(key, value)
    return settings()


def test_providers_keys_stay_in_their_secrets(
    helm4: Helm, written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = {"existingSecret": "providers", "key": "openai"}
    url, models = "https://api.openai.com/v1", {"smol": "gpt"}
    provider = {"name": "openai", "url": url, "apiKey": key, "models": models, "weight": 0.1}
    objects = helm4.template(written({"gateway": {"providers": [provider]}}))
    spec = manifests.one(objects, "Deployment", "r-pandal-gateway")["spec"]["template"]["spec"]
    (variable,) = (v for v in spec["containers"][0]["env"] if v["name"] == "PROVIDER_KEY_0")
    assert variable["valueFrom"]["secretKeyRef"] == {"name": "providers", "key": "openai"}
    gateway = _read(objects, "r-pandal-gateway", "GATEWAY_", GatewaySettings, monkeypatch)
    assert isinstance(gateway, GatewaySettings)
    (found,) = gateway.providers
    assert (found.name, found.api) == ("openai", "openai")
    assert found.url == "https://api.openai.com:443"
    assert (found.models, found.weight) == (models, 0.1)
    assert found.api_key is not None
    assert found.api_key.get_secret_value() == "$(PROVIDER_KEY_0)", "what Kubernetes fills in"


def test_what_the_chart_decides_arrives(
    helm4: Helm, written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {
        "gateway": {
            "port": 9000, "drain": {"timeoutS": 90},
            **REDIS, "upstreams": [{"name": "lab", "url": "http://10.0.0.1:8000"}],
        },
        "usage": {"transport": "kafka", "kafka": KAFKA},
        "autoscaler": {"port": 9200},
        "billing": {"prices": {"document": "x = 1"}, "terms": {"existingConfigMap": "terms"}},
        "pools": [
            {
                "name": "a", "model": "shown", "modelPath": "/models/there", "port": 8123,
                "engine": "pandal", "gpu": {"count": 1}, "settings": {"maxNumBatchedTokens": 9},
                "maxNumSeqs": 300, "drain": {"timeoutS": 77}, "autoscaling": {"enabled": True},
            }
        ],
    }  # fmt: skip
    objects = helm4.template(written(values))
    gateway = _read(objects, "r-pandal-gateway", "GATEWAY_", GatewaySettings, monkeypatch)
    assert isinstance(gateway, GatewaySettings)
    assert (gateway.host, gateway.port, gateway.drain_timeout_s) == ("0.0.0.0", 9000, 90)
    assert gateway.kafka_bootstrap == "k:9092"
    _assert_certificates_are_told(objects, gateway)
    assert [(r.name, r.url) for r in gateway.replicas] == [("lab", "http://10.0.0.1:8000")]
    assert gateway.replica_services == ("r-pandal-a",)
    assert (gateway.kubernetes_namespace, gateway.replica_port_name) == ("ns", "http")
    service = manifests.one(objects, "Service", "r-pandal-a")
    assert [(port["name"], port["port"]) for port in service["spec"]["ports"]] == [("http", 8123)]
    replica = _read(objects, "r-pandal-a", "REPLICA_", ReplicaSettings, monkeypatch)
    assert isinstance(replica, ReplicaSettings)
    assert (replica.model, replica.name, replica.port) == ("/models/there", "shown", 8123)
    assert (replica.max_num_seqs, replica.drain_timeout_s) == (300, 77)
    assert replica.device == "cuda"
    assert replica.max_num_batched_tokens == 300, "each running sequence steps by a token"
    autoscaler = _read(
        objects, "r-pandal-autoscaler", "AUTOSCALER_", AutoscalerSettings, monkeypatch
    )
    assert isinstance(autoscaler, AutoscalerSettings)
    assert (autoscaler.namespace, autoscaler.port) == ("ns", 9200)
    assert autoscaler.lease_name == "r-pandal-autoscaler"
    billing = _read(objects, "r-pandal-billing", "BILLING_", BillingSettings, monkeypatch)
    assert isinstance(billing, BillingSettings)
    assert (billing.spool_dir, billing.kafka_bootstrap) == (None, "k:9092")
    _assert_certificates_are_told(objects, billing)
    assert str(billing.terms) == "/etc/pandal/terms/terms.yaml"
    assert str(billing.policy_file) == "/etc/pandal/policies/policies.json"
    assert str(billing.price_book) == "/etc/pandal/prices/prices.toml"


def _assert_certificates_are_told(
    objects: list[Any], found: GatewaySettings | BillingSettings
) -> None:
    _assert_kafka_is_told(objects, found)
    _assert_redis_is_told(objects, found)


def _assert_kafka_is_told(objects: list[Any], found: GatewaySettings | BillingSettings) -> None:
    assert (found.kafka_security, found.kafka_sasl_mechanism) == ("sasl_ssl", "PLAIN")
    assert found.kafka_username is not None
    assert found.kafka_username.get_secret_value() == "name"
    files = _mounted(objects, found, "kafka")
    told = (found.kafka_ca_file, found.kafka_certificate_file, found.kafka_certificate_key_file)
    assert [files[str(path)] for path in told] == [
        ("authority", "ca.pem"), ("client", "tls.crt"), ("client", "tls.key"),
    ]  # fmt: skip


def _assert_redis_is_told(objects: list[Any], found: GatewaySettings | BillingSettings) -> None:
    files = _mounted(objects, found, "redis")
    told = (found.redis_ca_file, found.redis_certificate_file, found.redis_certificate_key_file)
    assert [files[str(path)] for path in told] == [
        ("authority", "redis.pem"), ("redis-client", "tls.crt"), ("redis-client", "tls.key"),
    ]  # fmt: skip


def _mounted(
    objects: list[Any], found: GatewaySettings | BillingSettings, name: str
) -> dict[str, tuple[str, str]]:
    """By path, the Secret and the key that are found there."""
    (volume,) = (v["projected"] for v in _volumes(objects, found) if v["name"] == name)
    return {
        f"/etc/pandal/{name}/{item['path']}": (source["secret"]["name"], item["key"])
        for source in volume["sources"]
        for item in source["secret"]["items"]
    }


def _volumes(objects: list[Any], found: GatewaySettings | BillingSettings) -> list[Any]:
    component = "gateway" if isinstance(found, GatewaySettings) else "billing"
    pod = manifests.one(objects, "Deployment", f"r-pandal-{component}")["spec"]["template"]
    volumes: list[Any] = pod["spec"]["volumes"]
    return volumes
