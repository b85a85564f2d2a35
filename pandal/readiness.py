"""Waiting until replicas and gateway take work, by their own word."""

import asyncio

import msgspec

from contracts.errors import UNDECODABLE
from contracts.replica_api import Phase, ReplicaState
from pandal.errors import FleetFailed, Unreachable
from pandal.http_client import Answer, Endpoint, get
from pandal.plan import FleetPlan, OwnReplica
from pandal.screen import ProgressView

_POLL_INTERVAL_S = 0.1
_ANSWER_TIMEOUT_S = 2.0
GATEWAY_PATIENCE_S = 30.0  # it has nothing to load; replicas are ready before it is asked

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


async def gateway_ready(gateway: Endpoint) -> None:
    """Raises FleetFailed, with the gateway's own reasons, when it takes too long."""
    answer: Answer | None = None
    try:
        async with asyncio.timeout(GATEWAY_PATIENCE_S):
            while answer is None or answer.status != 200:
                await asyncio.sleep(_POLL_INTERVAL_S)
                answer = await _poll(gateway)
    except TimeoutError as exc:
        why = "it does not answer" if answer is None else _reasons(answer)
        raise FleetFailed(f"gateway is not ready after {GATEWAY_PATIENCE_S:g} s: {why}") from exc


async def _replica_state(replica: OwnReplica) -> ReplicaState:
    answer = await _poll(replica.endpoint)
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


async def _poll(endpoint: Endpoint) -> Answer | None:
    """``None``: not listening yet."""
    try:
        return await asyncio.to_thread(get, endpoint, "/ready", timeout_s=_ANSWER_TIMEOUT_S)
    except Unreachable:
        return None
