"""What the processes of a fleet are given, and what not."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from billing.kafka_wiring import KafkaAccess
from billing.settings import Settings as BillingSettings
from gateway.settings import Settings as GatewaySettings
from pandal.child import ChildSpec
from pandal.datadir import DataDir
from pandal.fleet import admin_child, billing_child, gateway_child, replica_child, valkey_children
from pandal.http_client import Address
from pandal.plan import FleetPlan, OwnReplica
from pandal.settings import CommandSettings
from replica.engine.messages import KvCacheDtype, Precision

USERS = {
    "PATH": "/usr/bin:/bin",
    "LC_ALL": "C.UTF-8",
    "AWS_SECRET_ACCESS_KEY": "hunter2",
    "OPENAI_API_KEY": "hunter2",
    "HTTPS_PROXY": "http://me:hunter2@proxy",
    "OMP_NUM_THREADS": "2",
    "GATEWAY_MAX_BODY_BYTES": "1000",
    "GATEWAY_PORT": "1",
    "REPLICA_BLOCK_SIZE": "32",
    "BILLING_LOG_LEVEL": "debug",
    "ADMIN_OIDC_ISSUER": "https://id.example",
    "ADMIN_POLICY_URL": "redis://elsewhere",
    "GATEWAY_POLICY_URL": "redis://elsewhere",
    "GATEWAY_KAFKA_BOOTSTRAP": "elsewhere:9092",
    "BILLING_KAFKA_BOOTSTRAP": "elsewhere:9092",
}
COMMON = {"PATH", "LC_ALL"}
PEPPER, TOKEN = "p" * 43, "t" * 43
ADMIN = Address("127.0.0.1", 8082)
# Brokers as both services that speak to them are told of them, but for where they are.
KAFKA_ACCESS = {
    name
    for name in BillingSettings.model_fields.keys() & GatewaySettings.model_fields.keys()
    if name.startswith("kafka_") and name != "kafka_bootstrap"
}


@pytest.fixture
def plan(data_dir: DataDir) -> FleetPlan:
    return FleetPlan(
        data_dir=data_dir,
        gateway=Address("127.0.0.1", 8080),
        admin=ADMIN,
        valkey_binary=Path("/valkey-server"),
        model="tiny",
        model_cache=None,
        served_model="tiny",
        own_replicas=(OwnReplica("replica-0", 8081),),
        dev_replicas=(),
        threads_per_replica=1,
        precision=Precision.EXACT,
        kv_cache_dtype=KvCacheDtype.FLOAT32,
        kafka_bootstrap=None,
        is_once=False,
        adapters={"law": Path("/adapters/law")},
    )


@pytest.fixture
def children(plan: FleetPlan) -> dict[str, ChildSpec]:
    specs = (
        *valkey_children(plan, USERS),
        *(replica_child(plan, replica, USERS) for replica in plan.own_replicas),
        gateway_child(plan, pepper=PEPPER, inherited=USERS),
        admin_child(plan, ADMIN, pepper=PEPPER, token=TOKEN, inherited=USERS),
        billing_child(plan, USERS),
    )
    return {spec.name: spec for spec in specs}


@pytest.mark.parametrize(
    ("name", "passed_on"),
    [
        ("quota", COMMON),
        ("response-cache", COMMON),
        ("gateway", {*COMMON, "GATEWAY_MAX_BODY_BYTES"}),
        ("billing", {*COMMON, "BILLING_LOG_LEVEL"}),
        ("admin", {*COMMON, "ADMIN_OIDC_ISSUER"}),
        ("replica-0", {*COMMON, "REPLICA_BLOCK_SIZE", "OMP_NUM_THREADS", "HTTPS_PROXY"}),
    ],
)
def test_a_child_gets_its_own_knobs_and_no_secret_of_the_users(
    children: dict[str, ChildSpec], name: str, passed_on: set[str]
) -> None:
    environment = children[name].environment
    assert {k for k in USERS if environment.get(k) == USERS[k]} == passed_on


def test_the_gateway_speaks_to_the_brokers_as_billing_does(plan: FleetPlan) -> None:
    users = {
        "BILLING_KAFKA_SECURITY": "sasl_ssl",
        "BILLING_KAFKA_USERNAME": "fleet",
        "BILLING_KAFKA_PASSWORD": "hunter2",
        "BILLING_KAFKA_CA_FILE": "/ca.pem",
        "GATEWAY_KAFKA_USERNAME": "gateway",
    }
    brokers = replace(plan, kafka_bootstrap="kafka:9093")
    environment = gateway_child(brokers, pepper=PEPPER, inherited=users).environment
    assert {k: v for k, v in environment.items() if "KAFKA" in k} == {
        "GATEWAY_KAFKA_BOOTSTRAP": "kafka:9093",
        "GATEWAY_KAFKA_SECURITY": "sasl_ssl",
        "GATEWAY_KAFKA_USERNAME": "gateway",
        "GATEWAY_KAFKA_PASSWORD": "hunter2",
        "GATEWAY_KAFKA_CA_FILE": "/ca.pem",
    }
    spool_only = gateway_child(plan, pepper=PEPPER, inherited=users).environment
    assert "GATEWAY_KAFKA_PASSWORD" not in spool_only


def test_the_gateway_is_told_of_brokers_all_that_billing_is_told(plan: FleetPlan) -> None:
    users = {f"BILLING_{name}".upper(): name for name in KAFKA_ACCESS}
    brokers = replace(plan, kafka_bootstrap="kafka:9093")
    environment = gateway_child(brokers, pepper=PEPPER, inherited=users).environment
    for name in KAFKA_ACCESS:
        assert environment[f"GATEWAY_{name}".upper()] == name


def test_commands_speak_to_brokers_by_all_that_billing_is_told() -> None:
    assert len(KAFKA_ACCESS) >= 7
    assert {name for name in vars(KafkaAccess) if name.startswith("kafka_")} == KAFKA_ACCESS
    variables = {
        name: field.validation_alias
        for name, field in CommandSettings.model_fields.items()
        if name.startswith("kafka_") and name != "kafka_bootstrap"
    }
    assert variables == {name: f"BILLING_{name}".upper() for name in KAFKA_ACCESS}


def test_only_those_are_told_a_secret_who_need_it(children: dict[str, ChildSpec]) -> None:
    def told(secret: str) -> list[str]:
        texts = {name: str(child.environment) for name, child in children.items()}
        return [name for name, text in texts.items() if secret in text]

    assert told(PEPPER) == ["gateway", "admin"]
    assert told(TOKEN) == ["admin"]


def test_what_the_launcher_decides_wins_over_the_users_environment(
    children: dict[str, ChildSpec],
) -> None:
    assert children["gateway"].environment["GATEWAY_PORT"] == "8080"


def test_replicas_read_the_adapters_that_were_asked_for(children: dict[str, ChildSpec]) -> None:
    told = children["replica-0"].environment["REPLICA_ADAPTERS"]
    assert json.loads(told) == {"law": "/adapters/law"}


@pytest.mark.parametrize("module", ["gateway", "billing", "replica"])
def test_a_module_in_the_users_folder_is_not_taken_for_a_service(
    children: dict[str, ChildSpec], module: str, tmp_path: Path
) -> None:
    (tmp_path / f"{module}.py").write_text("print('impostor')")
    (child,) = (each for each in children.values() if each.command[-1] == module)
    *start, _module_flag, _module = child.command
    which = f"import importlib.util as u; print(u.find_spec({module!r}).origin)"
    result = subprocess.run(
        (*start, "-c", which), cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert Path(result.stdout.strip()).name == "__init__.py"
    assert start[0] == sys.executable
