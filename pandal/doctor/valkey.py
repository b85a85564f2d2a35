"""The store of quotas and policies: what it would lose, push out, or be late with.

Of a cluster each primary is asked: every tenant's quota is kept by one of them.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Final

import msgspec

from gateway.admission.resp import RespClient, first_word, pack
from gateway.errors import QuotaRefused, QuotaUnavailable
from gateway.resp_address import RespAddress
from pandal.connected_store import connected_store
from pandal.doctor.finding import Finding, failure, fine, warning

_ABOUT: Final = "valkey"
_CALL_DEADLINE_S: Final = 5.0
_CONNECT_S: Final = 1.0  # to one server
_NUM_PINGS: Final = 21
_SLOW_S, _TOO_SLOW_S = 0.005, 0.05  # the second is a gateway's usual deadline
_FULL_RATIO: Final = 0.8
_CLOCK_S: Final = 2.0
_NUM_SLOTS: Final = "16384"


async def valkey_findings(address: RespAddress) -> Sequence[Finding]:
    try:
        async with connected_store(
            address, call_deadline_s=_CALL_DEADLINE_S, connect_s=_connect_s(address)
        ) as store:
            nodes = sorted(store.homes, key=lambda node: node.where)
            found = await _of_cluster(nodes)
            for node in nodes:
                told = await _of_node(node)
                found += told if len(nodes) == 1 else [_of(node.where, each) for each in told]
            return found
    except QuotaRefused as exc:
        fact = f"{address.words} cannot be used: {exc.reason}"
        return [failure(_ABOUT, fact, exc.detail or "look into PANDAL_QUOTA_URL")]
    except (QuotaUnavailable, TimeoutError):
        return [_silent(address.words)]


def _connect_s(address: RespAddress) -> float:
    """Each Sentinel may be silent, but one."""
    return _CONNECT_S * (1 + len(address.sentinels))


async def _of_node(node: RespClient) -> list[Finding]:
    try:
        found = [await _latency(node), *await _settings(node), *await _state(node)]
        return [*found, await _clock(node)]
    except QuotaUnavailable:
        return [_silent("it")]


async def _of_cluster(nodes: Sequence[RespClient]) -> list[Finding]:
    """As the first that answers sees it; nothing where it is none."""
    for node in nodes:
        try:
            state = await _information(node, "CLUSTER", "INFO")
        except QuotaUnavailable:
            continue
        return list(_cluster(state)) if state else []
    return []


def _of(node: str, finding: Finding) -> Finding:
    return msgspec.structs.replace(finding, fact=f"{node}: {finding.fact}")


def _silent(where: str) -> Finding:
    advice = "start it ('pandal up' starts a local one), or name another in PANDAL_QUOTA_URL"
    return failure(_ABOUT, f"{where} does not answer", advice)


async def _latency(node: RespClient) -> Finding:
    took_s = []
    for _ in range(_NUM_PINGS):
        began_s = time.perf_counter()
        await node.call(pack("PING"))
        took_s.append(time.perf_counter() - began_s)
    usual_s = median(took_s)
    fact = f"it answers in {usual_s * 1e3:.2f} ms (median of {_NUM_PINGS})"
    if usual_s > _TOO_SLOW_S:
        return failure(_ABOUT, fact, "bring it nearer: gateways give a call 50 ms, then do without")
    if usual_s > _SLOW_S:
        return warning(_ABOUT, fact, "every request waits for it once: bring it nearer")
    return fine(_ABOUT, fact)


async def _settings(node: RespClient) -> list[Finding]:
    found = {n: await _setting(node, n) for n in ("appendonly", "save", "maxmemory-policy")}
    if any(value is None for value in found.values()):
        advice = "make sure yourself: appendonly yes, maxmemory-policy noeviction"
        return [warning(_ABOUT, "it does not tell its settings (CONFIG is not allowed)", advice)]
    return [*_persistence(found), *_eviction(found)]


def _persistence(settings: Mapping[str, str | None]) -> Iterator[Finding]:
    if settings["appendonly"] == "yes":
        yield fine(_ABOUT, "it keeps an append-only file")
    elif settings["save"]:
        advice = "CONFIG SET appendonly yes: a snapshot loses what was spent since the last one"
        yield warning(_ABOUT, "it keeps snapshots only", advice)
    else:
        advice = "CONFIG SET appendonly yes: a restart loses budgets, policies and their history"
        yield failure(_ABOUT, "it keeps nothing on disk", advice)


def _eviction(settings: Mapping[str, str | None]) -> Iterator[Finding]:
    policy = settings["maxmemory-policy"]
    if policy == "noeviction":
        yield fine(_ABOUT, "it pushes nothing out (noeviction)")
    else:
        advice = "CONFIG SET maxmemory-policy noeviction: what it pushes out are full quotas again"
        yield failure(_ABOUT, f"it may push counters out ({policy})", advice)


async def _setting(node: RespClient, name: str) -> str | None:
    reply = await node.call(pack("CONFIG", "GET", name))
    if first_word(reply) is not None or not isinstance(reply, list) or len(reply) != 2:
        return None
    return str(reply[1].decode())


async def _state(node: RespClient) -> list[Finding]:
    state = await _information(node, "INFO")
    found = [*_memory(state), *_disk(state)]
    if state.get("role") == "slave":
        found.append(
            failure(_ABOUT, "it is a replica", "name its primary: replicas take no writes")
        )
    return found


def _memory(state: Mapping[str, str]) -> Iterator[Finding]:
    used, most = int(state.get("used_memory", 0)), int(state.get("maxmemory", 0))
    if most and used > _FULL_RATIO * most:
        fact = f"{used / most:.0%} of its memory is in use"
        yield warning(_ABOUT, fact, "raise maxmemory: full, it refuses every reservation")
    elif most:
        yield fine(_ABOUT, f"{used / most:.0%} of its memory is in use")


def _disk(state: Mapping[str, str]) -> Iterator[Finding]:
    for name in ("aof_last_write_status", "rdb_last_bgsave_status"):
        if state.get(name, "ok") != "ok":
            fact = f"it cannot write to its disk ({name}: {state[name]})"
            yield failure(_ABOUT, fact, "make room on its disk")


def _cluster(state: Mapping[str, str]) -> Iterator[Finding]:
    if state.get("cluster_state") == "ok" and state.get("cluster_slots_ok") == _NUM_SLOTS:
        yield fine(_ABOUT, f"the cluster is whole ({state.get('cluster_size')} primaries)")
    else:
        fact = f"the cluster serves {state.get('cluster_slots_ok')} of {_NUM_SLOTS} slots"
        yield failure(
            _ABOUT, fact, "CLUSTER NODES tells which node is gone; its tenants wait for it"
        )


async def _clock(node: RespClient) -> Finding:
    reply = await node.call(pack("TIME"))
    now_s = time.time()
    if not isinstance(reply, list):
        return warning(_ABOUT, "it does not tell its time", "compare the clocks yourself")
    away_s = float(reply[0]) + float(reply[1]) / 1e6 - now_s
    if abs(away_s) > _CLOCK_S:
        advice = "run NTP on both: budgets begin and end by its clock, keys by the gateways'"
        return warning(_ABOUT, f"its clock is {away_s:+.1f} s from this machine's", advice)
    return fine(_ABOUT, "its clock is this machine's")


async def _information(node: RespClient, *command: str) -> Mapping[str, str]:
    reply = await node.call(pack(*command))
    text = reply.decode("utf-8", "replace") if isinstance(reply, bytes) else ""
    pairs = (line.partition(":") for line in text.splitlines() if not line.startswith("#"))
    return {name: value for name, _, value in pairs}
