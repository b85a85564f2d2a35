"""Waiting until replicas and gateway take work, and a new key is one: by their own word."""

import asyncio
import time

import msgspec

from contracts.errors import UNDECODABLE
from contracts.replica_api import Phase, ReplicaState
from pandal.datadir import DataDir
from pandal.errors import FleetFailed, Unreachable
from pandal.fleet_record import running_fleet
from pandal.http_client import Address, Answer, get, parse_url
from pandal.plan import FleetPlan, OwnReplica
from pandal.screen import ProgressView

_POLL_INTERVAL_S = 0.1
_ANSWER_TIMEOUT_S = 2.0
GATEWAY_READY_PATIENCE_S = 30.0  # it has nothing to load; replicas are ready before it is asked
KEY_PATIENCE_S = 3.0  # the gateway re-reads the policy file within one second
_KEY_ANSWER_TIMEOUT_S = 1.0

_STARTING = ReplicaState(phase=Phase.STARTING, progress_ratio=0.0)


async def replicas_ready(plan: FleetPlan, view: ProgressView) -> None:
    """Waits as long as they make their way; raises FleetFailed when one says it cannot."""
    waiting = plan.own_replicas
    while waiting:
        states = [await _replica_state(replica) for replica in waiting]
        for replica, state in zip(waiting, states, strict=True):
            view.show(replica.name, state.phase, state.progress_ratio, state.detail)
            if state.phase is Phase.FAILED:
                log = plan.data_dir.log(replica.name)
                raise FleetFailed(
                    f"{replica.name} cannot serve its model: {state.detail} (log: {log})"
                )
        waiting = tuple(
            replica
            for replica, state in zip(waiting, states, strict=True)
            if state.phase is not Phase.READY
        )
        await asyncio.sleep(_POLL_INTERVAL_S)


async def gateway_ready(gateway: Address) -> None:
    """Raises FleetFailed, with the gateway's own reasons, when it takes too long."""
    answer: Answer | None = None
    try:
        async with asyncio.timeout(GATEWAY_READY_PATIENCE_S):
            while answer is None or answer.status != 200:
                await asyncio.sleep(_POLL_INTERVAL_S)
                answer = await _poll(gateway)
    except TimeoutError as exc:
        why = "it does not answer" if answer is None else _reasons(answer)
        waited = f"{GATEWAY_READY_PATIENCE_S:g} s"
        raise FleetFailed(f"gateway is not ready after {waited}: {why}") from exc


def wait_until_accepted(data_dir: DataDir, api_key: str) -> str:
    """Returns one line for people: whether the key works now, or when it will."""
    fleet = running_fleet(data_dir)
    if fleet is None:
        return "no fleet is running on this data directory; the key is valid at the next start"
    give_up_monotonic_s = time.monotonic() + KEY_PATIENCE_S
    while not _is_accepted(fleet.gateway_url, api_key):
        if time.monotonic() >= give_up_monotonic_s:
            return f"stored, but {fleet.gateway_url} does not accept the key yet"
        time.sleep(_POLL_INTERVAL_S)
    return f"accepted by {fleet.gateway_url}"


async def _replica_state(replica: OwnReplica) -> ReplicaState:
    answer = await _poll(replica.address)
    if answer is None:
        return _STARTING
    try:
        return msgspec.json.decode(answer.body, type=ReplicaState)
    except UNDECODABLE as exc:
        raise FleetFailed(f"{replica.name}: unexpected answer on /ready: {exc}") from exc


class _Readiness(msgspec.Struct):
    reasons: list[str]


def _reasons(answer: Answer) -> str:
    try:
        return ", ".join(answer.decode(_Readiness).reasons)
    except Unreachable:
        return f"it answers {answer.status}"


async def _poll(address: Address) -> Answer | None:
    """``None``: not listening yet."""
    try:
        return await asyncio.to_thread(get, address, "/ready", timeout_s=_ANSWER_TIMEOUT_S)
    except Unreachable:
        return None


def _is_accepted(gateway_url: str, api_key: str) -> bool:
    gateway = parse_url(gateway_url, option="fleet.json")
    headers = {"authorization": f"Bearer {api_key}"}
    try:
        answer = get(gateway, "/v1/models", headers=headers, timeout_s=_KEY_ANSWER_TIMEOUT_S)
    except Unreachable:
        return False
    return answer.status == 200
