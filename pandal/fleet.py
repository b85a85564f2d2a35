"""The processes of a local fleet and their environments: the one place that spells them.

A child gets from the user's environment what a program needs to run, and the knobs of its own
service: no token or password of the user's, and nothing of the other services.
"""

import re
import signal
import sys
from collections.abc import Mapping
from typing import Final

import msgspec

from contracts.errors import UNDECODABLE
from pandal.child import ChildSpec
from pandal.http_client import Address
from pandal.plan import DEFAULT_ALIAS, HOST, FleetPlan, OwnReplica
from pandal.valkey import quota_server, response_cache_server

GATEWAY = "gateway"
ADMIN = "admin"
BILLING = "billing"
QUOTA = "quota"
RESPONSE_CACHE = "response-cache"

ADMIN_CALLER = "local"  # as the audit log calls whoever has the fleet's token

GATEWAY_DRAIN_S = 3.0  # a demo's answers are short, and Ctrl-C promises ten seconds in all
GATEWAY_ABORT_S = 1.5  # some steps of a busy engine, for those that the drain's end interrupts
GATEWAY_SETTLE_S = 1.0  # then their quota and their events, on a busy disk
AUTOSCALED_DRAIN_S = 600.0  # one that is not needed any more finishes its streams
REPLICA_DRAIN_S = 0.5  # the gateway has drained before: nobody is left to wait for
BILLING_POLL_INTERVAL_S = 0.2  # the demo shows its ledger line at once

_PASSED_ON: Final = re.compile(
    "PATH|HOME|USER|LOGNAME|SHELL|TERM|LANG|LANGUAGE|LC_.*|TZ|TMPDIR|TMP|TEMP|XDG_.*|VIRTUAL_ENV"
    "|PYTHON.*|LD_LIBRARY_PATH|LD_PRELOAD|MALLOC_.*|GLIBC_TUNABLES"
)
# What computes and what downloads the model has more: a proxy's URL may hold a password.
_PASSED_ON_TO_REPLICAS: Final = re.compile(
    "(OMP|KMP|MKL|OPENBLAS|NUMBA|TORCH|PYTORCH|TORCHINDUCTOR|TRITON|CUDA|NVIDIA|PIP)_.*"
    "|SSL_CERT_FILE|SSL_CERT_DIR|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE"
    "|(HTTP|HTTPS|ALL|NO)_PROXY|(http|https|all|no)_proxy"
)

_KAFKA_ACCESS: Final = (
    "SECURITY",
    "CA_FILE",
    "CERTIFICATE_FILE",
    "CERTIFICATE_KEY_FILE",
    "SASL_MECHANISM",
    "USERNAME",
    "PASSWORD",
)


def valkey_children(plan: FleetPlan, inherited: Mapping[str, str]) -> tuple[ChildSpec, ChildSpec]:
    quota = quota_server(
        plan.valkey_binary, socket=plan.quota_socket, state_dir=plan.data_dir.quota
    )
    cache = response_cache_server(plan.valkey_binary, socket=plan.response_cache_socket)
    return _valkey(plan, QUOTA, quota, inherited), _valkey(plan, RESPONSE_CACHE, cache, inherited)


def replica_child(plan: FleetPlan, replica: OwnReplica, inherited: Mapping[str, str]) -> ChildSpec:
    return _service(
        plan,
        name=replica.name,
        module="replica",
        inherited=inherited,
        environment={
            **_matching(inherited, _PASSED_ON_TO_REPLICAS),
            "REPLICA_HOST": HOST,
            "REPLICA_PORT": str(replica.port),
            "REPLICA_MODEL": plan.model,
            "REPLICA_SERVED_MODEL_NAME": plan.served_model,
            "REPLICA_NUM_THREADS": str(plan.threads_per_replica),
            "REPLICA_PRECISION": plan.precision,
            "REPLICA_KV_CACHE_DTYPE": plan.kv_cache_dtype,
            "REPLICA_DRAIN_TIMEOUT_S": str(_replica_drain_s(plan)),
            "REPLICA_USAGE_JOURNAL_DIR": str(plan.data_dir.usage_journal(replica.name)),
            **_optional("REPLICA_MODEL_CACHE_DIR", plan.model_cache),
            **_optional("REPLICA_ADAPTERS", _adapters(plan)),
        },
    )


def _adapters(plan: FleetPlan) -> str | None:
    """As JSON; None: there are none."""
    folders = {name: str(folder) for name, folder in plan.adapters.items()}
    return msgspec.json.encode(folders).decode() if folders else None


def _replica_drain_s(plan: FleetPlan) -> float:
    return REPLICA_DRAIN_S if plan.autoscale_from is None else AUTOSCALED_DRAIN_S


def gateway_child(plan: FleetPlan, *, pepper: str, inherited: Mapping[str, str]) -> ChildSpec:
    replicas = [{"name": replica.name, "url": replica.address.url} for replica in plan.upstreams]
    served = plan.served_model
    aliases = {} if served == DEFAULT_ALIAS else {DEFAULT_ALIAS: served}
    environment = {
        "GATEWAY_HOST": HOST,
        "GATEWAY_PORT": str(plan.gateway.port),
        "GATEWAY_REPLICAS": msgspec.json.encode(replicas).decode(),
        "GATEWAY_MODEL_ALIASES": msgspec.json.encode(aliases).decode(),
        "GATEWAY_POLICY_FILE": str(plan.data_dir.policies),
        "GATEWAY_POLICY_URL": None,  # what it tells would be written over the fleet's file
        "GATEWAY_KEY_PEPPER": pepper,
        "GATEWAY_QUOTA_URL": plan.quota_url,
        "GATEWAY_CACHE_URL": f"unix://{plan.response_cache_socket}",
        "GATEWAY_SPOOL_DIR": str(plan.data_dir.spool),
        "GATEWAY_DRAIN_TIMEOUT_S": str(GATEWAY_DRAIN_S),
        "GATEWAY_ABORT_TIMEOUT_S": str(GATEWAY_ABORT_S),
        "GATEWAY_KAFKA_BOOTSTRAP": plan.kafka_bootstrap,
        **({} if plan.kafka_bootstrap is None else _kafka_access(inherited)),
    }
    return _service(
        plan, name=GATEWAY, module="gateway", inherited=inherited, environment=environment
    )


class _Named(msgspec.Struct, frozen=True):
    name: str


def providers_named(inherited: Mapping[str, str]) -> tuple[str, ...] | None:
    """That the gateway gets by its variable; ``None``: it will not take what is there."""
    told = inherited.get("GATEWAY_PROVIDERS", "[]")
    try:
        return tuple(each.name for each in msgspec.json.decode(told, type=list[_Named]))
    except UNDECODABLE:
        return None


def _kafka_access(inherited: Mapping[str, str]) -> dict[str, str]:
    """Brokers are spoken to as billing does, where the user says nothing else of the gateway."""
    told = {name: inherited.get(f"BILLING_KAFKA_{name}") for name in _KAFKA_ACCESS}
    return {
        f"GATEWAY_KAFKA_{name}": value
        for name, value in told.items()
        if value is not None and f"GATEWAY_KAFKA_{name}" not in inherited
    }


def admin_child(
    plan: FleetPlan, admin: Address, *, pepper: str, token: str, inherited: Mapping[str, str]
) -> ChildSpec:
    """``token``: for whoever can read the data directory, and so could edit the policy there."""
    owner = {"name": ADMIN_CALLER, "token": token, "role": "owner"}
    environment = {
        "ADMIN_HOST": admin.host,
        "ADMIN_PORT": str(admin.port),
        "ADMIN_POLICY_FILE": str(plan.data_dir.policies),
        "ADMIN_POLICY_URL": None,
        "ADMIN_KEY_PEPPER": pepper,
        "ADMIN_STATIC_TOKENS": msgspec.json.encode([owner]).decode(),
    }
    return _service(
        plan, name=ADMIN, module="gateway.admin", inherited=inherited, environment=environment
    )


def billing_child(plan: FleetPlan, inherited: Mapping[str, str]) -> ChildSpec:
    environment: dict[str, str | None] = {
        "BILLING_LEDGER_URL": plan.data_dir.ledger_url,
        "BILLING_SPOOL_DIR": str(plan.data_dir.spool),
        "BILLING_POLL_INTERVAL_S": str(BILLING_POLL_INTERVAL_S),
        "BILLING_TERMS": str(plan.data_dir.terms),
        "BILLING_QUOTA_URL": plan.quota_url,
        "BILLING_POLICY_FILE": str(plan.data_dir.policies),
        "BILLING_USAGE_JOURNALS": str(plan.data_dir.usage_journals),
        "BILLING_KAFKA_BOOTSTRAP": plan.kafka_bootstrap,
    }
    if plan.kafka_bootstrap is None:
        environment["BILLING_ALERTS_TOPIC"] = None  # of brokers that are another fleet's
    return _service(
        plan, name=BILLING, module="billing", inherited=inherited, environment=environment
    )


def _optional(name: str, value: object | None) -> dict[str, str]:
    """Left out when there is none: the service has its own default."""
    return {} if value is None else {name: str(value)}


def _matching(inherited: Mapping[str, str], names: re.Pattern[str]) -> dict[str, str]:
    return {name: value for name, value in inherited.items() if names.fullmatch(name)}


def _service(
    plan: FleetPlan,
    *,
    name: str,
    module: str,
    inherited: Mapping[str, str],
    environment: Mapping[str, str | None],
) -> ChildSpec:
    """``environment`` wins over what the user has set; None: not set, whatever the user has."""
    prefix = f"{module.rpartition('.')[2].upper()}_"
    knobs = {k: v for k, v in inherited.items() if k.startswith(prefix) and k not in environment}
    return ChildSpec(
        name=name,
        # Without -P the folder that the user happens to be in would come before our own modules.
        command=(sys.executable, "-P", "-m", module),
        environment={
            **_matching(inherited, _PASSED_ON),
            **knobs,
            **{name: value for name, value in environment.items() if value is not None},
            "PYTHONSAFEPATH": "1",  # the same for what the service itself starts
        },
        log_path=plan.data_dir.log(name),
        death_signal=signal.SIGKILL,  # services are built to be killed at any moment
    )


def _valkey(
    plan: FleetPlan, name: str, command: tuple[str, ...], inherited: Mapping[str, str]
) -> ChildSpec:
    return ChildSpec(
        name=name,
        command=command,
        environment=_matching(inherited, _PASSED_ON),
        log_path=plan.data_dir.log(name),
        death_signal=signal.SIGTERM,  # lets it flush the last second of the append-only file
    )
