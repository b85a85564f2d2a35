"""The store of quotas and policies: what it would lose, push out, or be late with."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from statistics import median
from typing import Final

from gateway.admission.quota_store import QuotaStore
from gateway.admission.resp import first_word, pack
from gateway.errors import QuotaUnavailable
from gateway.resp_address import RespAddress
from pandal.doctor.finding import Finding, failure, fine, warning

_ABOUT: Final = "valkey"
_CALL_DEADLINE_S: Final = 5.0
_CONNECT_S: Final = 3.0
_NUM_PINGS: Final = 21
_SLOW_S, _TOO_SLOW_S = 0.005, 0.05  # the second is a gateway's usual deadline
_FULL_RATIO: Final = 0.8
_CLOCK_S: Final = 2.0
_NUM_SLOTS: Final = "16384"


async def valkey_findings(address: RespAddress) -> list[Finding]:
    try:
        async with _connected(address) as store:
            found = [await _latency(store), *await _settings(store), *await _state(store)]
            found.append(await _clock(store))
            return found
    except (QuotaUnavailable, TimeoutError):
        advice = "start it, or correct the address; until then gateways admit only what they lease"
        return [failure(_ABOUT, "it does not answer", advice)]


async def _latency(store: QuotaStore) -> Finding:
    took_s = []
    for _ in range(_NUM_PINGS):
        began_s = time.perf_counter()
        await store.call(pack("PING"), 0)
        took_s.append(time.perf_counter() - began_s)
    usual_s = median(took_s)
    fact = f"it answers in {usual_s * 1e3:.2f} ms (median of {_NUM_PINGS})"
    if usual_s > _TOO_SLOW_S:
        return failure(_ABOUT, fact, "bring it nearer: gateways give a call 50 ms, then do without")
    if usual_s > _SLOW_S:
        return warning(_ABOUT, fact, "every request waits for it once: bring it nearer")
    return fine(_ABOUT, fact)


async def _settings(store: QuotaStore) -> list[Finding]:
    found = {n: await _setting(store, n) for n in ("appendonly", "save", "maxmemory-policy")}
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


async def _setting(store: QuotaStore, name: str) -> str | None:
    reply = await store.call(pack("CONFIG", "GET", name), 0)
    if first_word(reply) is not None or not isinstance(reply, list) or len(reply) != 2:
        return None
    return str(reply[1].decode())


async def _state(store: QuotaStore) -> list[Finding]:
    state = await _information(store, "INFO")
    found = [*_memory(state), *_disk(state)]
    if state.get("role") == "slave":
        found.append(
            failure(_ABOUT, "it is a replica", "name its primary: replicas take no writes")
        )
    if state.get("cluster_enabled") == "1":
        found += _cluster(await _information(store, "CLUSTER", "INFO"))
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


async def _clock(store: QuotaStore) -> Finding:
    reply = await store.call(pack("TIME"), 0)
    now_s = time.time()
    if not isinstance(reply, list):
        return warning(_ABOUT, "it does not tell its time", "compare the clocks yourself")
    away_s = float(reply[0]) + float(reply[1]) / 1e6 - now_s
    if abs(away_s) > _CLOCK_S:
        advice = "run NTP on both: budgets begin and end by its clock, keys by the gateways'"
        return warning(_ABOUT, f"its clock is {away_s:+.1f} s from this machine's", advice)
    return fine(_ABOUT, "its clock is this machine's")


async def _information(store: QuotaStore, *command: str) -> Mapping[str, str]:
    reply = await store.call(pack(*command), 0)
    text = reply.decode("utf-8", "replace") if isinstance(reply, bytes) else ""
    pairs = (line.partition(":") for line in text.splitlines() if not line.startswith("#"))
    return {name: value for name, _, value in pairs}


@asynccontextmanager
async def _connected(address: RespAddress) -> AsyncIterator[QuotaStore]:
    store = QuotaStore(address, _CALL_DEADLINE_S)
    running = asyncio.create_task(store.run())
    try:
        async with asyncio.timeout(_CONNECT_S):
            while not store.is_reachable:  # noqa: ASYNC110  # it tells by no event
                await asyncio.sleep(0.01)
        yield store
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
