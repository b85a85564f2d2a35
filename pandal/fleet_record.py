"""``fleet.json``: what other commands need to know of the fleet that runs on a data directory.

Kept true while children come and go; a killed launcher leaves one behind, and its children dying.
"""

import os
from contextlib import suppress

import msgspec

from contracts.errors import UNDECODABLE
from pandal.child import ChildExit
from pandal.datadir import DataDir
from pandal.errors import StateUnreadable
from pandal.plan import FleetPlan
from pandal.private_file import replace_private
from pandal.processes import ProcessId, identify, is_alive, wait_gone_or_kill
from pandal.screen import Screen

LEFTOVER_PATIENCE_S = 3.0


class FleetState(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="fleet.v1"):
    launcher: ProcessId
    gateway_url: str
    admin_url: str | None = None
    quota_url: str
    ledger_url: str
    policy_file: str
    model: str
    replica_urls: dict[str, str]
    children: dict[str, ProcessId]
    providers: tuple[str, ...] | None = None  # that the gateway has; None: nobody knows


_decoder = msgspec.json.Decoder(FleetState)


def write_fleet_state(data_dir: DataDir, state: FleetState) -> None:
    payload = msgspec.json.format(msgspec.json.encode(state), indent=2) + b"\n"
    replace_private(data_dir.fleet, payload)


def read_fleet_state(data_dir: DataDir) -> FleetState | None:
    """The last fleet's state, running or not.  ``None``: it was stopped in order, or never ran."""
    try:
        payload = data_dir.fleet.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        return _decoder.decode(payload)
    except UNDECODABLE as exc:
        raise StateUnreadable(f"{data_dir.fleet}: {exc}") from exc


def running_fleet(data_dir: DataDir) -> FleetState | None:
    """``None`` too when a killed launcher has left its file behind."""
    state = read_fleet_state(data_dir)
    return state if state is not None and is_alive(state.launcher) else None


def remove_fleet_state(data_dir: DataDir) -> None:
    data_dir.fleet.unlink(missing_ok=True)


class FleetRecord:
    """Hears of children from the supervisor; tells the data directory, and the user of deaths."""

    def __init__(
        self, plan: FleetPlan, screen: Screen, providers: tuple[str, ...] | None = None
    ) -> None:
        self._plan = plan
        self._providers = providers
        self._screen = screen
        self._children: dict[str, ProcessId] = {}

    def started(self, name: str, pid: int) -> None:
        process = identify(pid)
        if process is None:  # dead already, which the supervisor is about to see
            return
        self._children[name] = process
        try:
            self._write()
        except OSError as exc:  # a full disk must not end a fleet that serves
            self._screen.problem(f"{self._plan.data_dir.fleet} is out of date: {exc.strerror}")

    def restarting(self, exit_: ChildExit, delay_s: float) -> None:
        self._screen.problem(f"{exit_}; starting it again in {delay_s:g} s")

    def _write(self) -> None:
        launcher = identify(os.getpid())
        assert launcher is not None, "a running process has an entry in /proc"
        state = FleetState(
            launcher=launcher,
            gateway_url=self._plan.gateway.url,
            admin_url=None if self._plan.admin is None else self._plan.admin.url,
            quota_url=self._plan.quota_url,
            ledger_url=self._plan.data_dir.ledger_url,
            policy_file=str(self._plan.data_dir.policies),
            model=self._plan.served_model,
            replica_urls={r.name: r.address.url for r in self._plan.upstreams},
            children=dict(self._children),
            providers=self._providers,
        )
        write_fleet_state(self._plan.data_dir, state)


def clear_leftovers(data_dir: DataDir, *, patience_s: float = LEFTOVER_PATIENCE_S) -> None:
    """After a killed launcher its children are dying: no two servers may write one state.

    Needs the data directory's lock.  A file of another version is removed: its fleet is gone,
    or the lock would be held.
    """
    with suppress(StateUnreadable):
        state = read_fleet_state(data_dir)
        for process in () if state is None else state.children.values():
            wait_gone_or_kill(process, patience_s=patience_s)
    remove_fleet_state(data_dir)
