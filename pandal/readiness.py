"""Waiting until replicas and gateway take work, and a new key is one: by their own word."""

import asyncio
from pathlib import Path

import msgspec

from contracts.errors import UNDECODABLE
from contracts.replica_api import Phase, ReplicaState
from pandal.datadir import DataDir
from pandal.errors import FleetFailed, Unreachable
from pandal.fleet_record import running_fleet
from pandal.http_client import Address, Answer, get, parse_url
from pandal.plan import FleetPlan, OwnReplica
from pandal.polling import poll_until
from pandal.screen import ProgressView

_POLL_INTERVAL_S = 0.1
_ANSWER_TIMEOUT_S = 2.0
# The longest step that shows no progress: kernels compiled for the first time on a slow machine.
REPLICA_STALL_PATIENCE_S = 300.0
GATEWAY_READY_PATIENCE_S = 30.0  # it has nothing to load; replicas are ready before it is asked
KEY_PATIENCE_S = 10.0  # the gateway re-reads the policy file within one second, if it is not busy
_KEY_ANSWER_TIMEOUT_S = 1.0

_STARTING = ReplicaState(phase=Phase.STARTING, progress_ratio=0.0)


class _Ascent:
    """One replica on its way up."""

    def __init__(self, replica: OwnReplica, log_path: Path, now_monotonic_s: float) -> None:
        self.replica = replica
        self.state = _STARTING
        self._log_path = log_path
        self._moved_at_monotonic_s = now_monotonic_s

    def advance(
        self, state: ReplicaState, now_monotonic_s: float, *, stall_patience_s: float
    ) -> None:
        """Raises FleetFailed if it cannot serve its model, or no longer gets on."""
        if state != self.state:
            self._moved_at_monotonic_s = now_monotonic_s
        self.state = state
        name, log = self.replica.name, f"(log: {self._log_path})"
        if state.phase is Phase.FAILED:
            raise FleetFailed(f"{name} cannot serve its model: {state.detail} {log}")
        if now_monotonic_s - self._moved_at_monotonic_s >= stall_patience_s:
            raise FleetFailed(
                f"{name} has not moved for {stall_patience_s:g} s, "
                f"at {state.phase} {state.progress_ratio:.0%} {log}"
            )


async def replicas_ready(
    plan: FleetPlan, view: ProgressView, *, stall_patience_s: float = REPLICA_STALL_PATIENCE_S
) -> None:
    """Waits as long as they make their way.  Raises FleetFailed."""
    monotonic_s = asyncio.get_running_loop().time
    waiting = [_Ascent(r, plan.data_dir.log(r.name), monotonic_s()) for r in plan.first_replicas]
    while waiting:
        for each in waiting:
            state = await _replica_state(each.replica)
            each.advance(state, monotonic_s(), stall_patience_s=stall_patience_s)
            view.show(each.replica.name, state.phase, state.progress_ratio, state.detail)
        waiting = [each for each in waiting if each.state.phase is not Phase.READY]
        await asyncio.sleep(_POLL_INTERVAL_S)


async def is_ready(address: Address, path: str = "/ready") -> bool:
    """One that computes on all cores may answer late: not now, then."""
    answer = await _poll(address, path)
    return answer is not None and answer.status == 200


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


async def admin_ready(admin: Address) -> None:
    """Raises FleetFailed when it takes too long."""
    try:
        async with asyncio.timeout(GATEWAY_READY_PATIENCE_S):
            await poll_until(lambda: _poll(admin, "/health"), interval_s=_POLL_INTERVAL_S)
    except TimeoutError as exc:
        waited = f"{GATEWAY_READY_PATIENCE_S:g} s"
        raise FleetFailed(f"the admin API does not answer after {waited}") from exc


def wait_until_accepted(data_dir: DataDir, api_key: str) -> str:
    """Returns one line for people: whether the key works now, or when it will."""
    fleet = running_fleet(data_dir)
    if fleet is None:
        return "no fleet is running on this data directory; the key is valid at the next start"
    try:
        asyncio.run(_accepted(fleet.gateway_url, api_key))
    except TimeoutError:
        return f"stored, but {fleet.gateway_url} does not accept the key yet"
    return f"accepted by {fleet.gateway_url}"


async def _accepted(gateway_url: str, api_key: str) -> None:
    """Raises TimeoutError."""

    async def is_accepted() -> bool | None:
        return await asyncio.to_thread(_is_accepted, gateway_url, api_key) or None

    async with asyncio.timeout(KEY_PATIENCE_S):
        await poll_until(is_accepted, interval_s=_POLL_INTERVAL_S)


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


async def _poll(address: Address, path: str = "/ready") -> Answer | None:
    """``None``: not listening yet."""
    try:
        return await asyncio.to_thread(get, address, path, timeout_s=_ANSWER_TIMEOUT_S)
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
