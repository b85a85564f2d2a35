"""One look at everything: what gateway, replicas and store tell at this moment."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from autoscaler.errors import SourceFailed
from autoscaler.exposition import Families, parse
from contracts import metrics as names
from contracts.errors import UNDECODABLE
from contracts.load import LOAD_PATH, ReplicaLoad
from contracts.names import TenantId
from gateway.admission.levels import Levels, levels_of
from gateway.admission.quota_store import QuotaStore
from gateway.errors import QuotaUnavailable
from pandal.datadir import DataDir
from pandal.errors import Unreachable
from pandal.http_client import Address, get, parse_url

_ANSWER_S = 1.0


@dataclass(frozen=True, slots=True)
class Counters:
    """Of the gateway since it began; ``None`` where it does not answer."""

    num_requests: float = 0
    num_failures: float = 0  # with a status of 500 and above
    tokens: Mapping[str, float] = field(default_factory=dict)  # by class
    refusals: Mapping[str, float] = field(default_factory=dict)  # by reason
    shadow_refusals: Mapping[str, float] = field(default_factory=dict)  # by tenant and rule
    num_active: float = 0
    num_waiting: float = 0
    ttft_sum_s: float = 0
    num_ttft: float = 0
    alarms: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Sample:
    at_s: float
    gateway: Counters | None
    replicas: Mapping[str, ReplicaLoad | None]  # by name; None: it does not answer
    tenants: Mapping[str, Levels | None]  # None: it has asked for nothing lately
    is_store_there: bool
    scaling: Mapping[str, Any]  # JSON, as ``pandal explain`` reads it; empty: nobody scales


async def sample(
    gateway: Address,
    replicas: Mapping[str, str],
    store: QuotaStore,
    tenants: Sequence[TenantId],
    data_dir: DataDir,
) -> Sample:
    counters, loads = await asyncio.gather(
        asyncio.to_thread(_counters, gateway),
        asyncio.gather(*(asyncio.to_thread(_load, url) for url in replicas.values())),
    )
    now_s = time.time()
    levels: dict[str, Levels | None] = {}
    is_there = store.is_reachable
    try:
        for tenant in tenants if is_there else ():
            levels[tenant] = await levels_of(store, tenant, int(now_s * 1e3))
    except QuotaUnavailable:
        is_there = False
    return Sample(
        at_s=now_s,
        gateway=counters,
        replicas=dict(zip(replicas, loads, strict=True)),
        tenants=levels,
        is_store_there=is_there,
        scaling=_scaling(data_dir),
    )


def _counters(gateway: Address) -> Counters | None:
    try:
        answer = get(gateway, "/metrics", timeout_s=_ANSWER_S)
        return counters_of(parse(answer.body.decode("utf-8", "replace")))
    except (Unreachable, SourceFailed):
        return None


def counters_of(families: Families) -> Counters:
    def by(name: str, label: str) -> Mapping[str, float]:
        return {s.labels.get(label, ""): s.value for s in families.get(name, ())}

    def total(name: str) -> float:
        return sum(s.value for s in families.get(name, ()))

    requests = families.get(names.GATEWAY_REQUESTS, ())
    alarms = {
        names.GATEWAY_QUOTA_LOST: "quota store lost",
        names.GATEWAY_POLICY_LOST: "policy store lost",
        names.GATEWAY_POLICY_REFUSED: "stored policy refused",
    }
    return Counters(
        num_requests=total(names.GATEWAY_REQUESTS),
        num_failures=sum(s.value for s in requests if s.labels.get("status", "") >= "500"),
        tokens=by(names.GATEWAY_TOKENS, "class"),
        refusals=by(names.GATEWAY_REFUSALS, "reason"),
        shadow_refusals={
            ", ".join(s.labels[label] for label in ("tenant", "rule") if label in s.labels): s.value
            for s in families.get(names.GATEWAY_SHADOW_REFUSALS, ())
            if s.value
        },
        num_active=total(names.GATEWAY_ACTIVE_REQUESTS),
        num_waiting=total(names.GATEWAY_WAITING_REQUESTS),
        ttft_sum_s=total(f"{names.GATEWAY_TTFT}_sum"),
        num_ttft=total(f"{names.GATEWAY_TTFT}_count"),
        alarms=tuple(words for name, words in alarms.items() if total(name) > 0),
    )


def _load(url: str) -> ReplicaLoad | None:
    try:
        answer = get(parse_url(url, option="replica"), LOAD_PATH, timeout_s=_ANSWER_S)
        return msgspec.json.decode(answer.body, type=ReplicaLoad)
    except (Unreachable, *UNDECODABLE):
        return None


def _scaling(data_dir: DataDir) -> Mapping[str, Any]:
    try:
        return msgspec.json.decode(data_dir.scaling.read_bytes(), type=dict[str, Any])
    except (OSError, *UNDECODABLE):
        return {}
