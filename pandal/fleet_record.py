"""Keeps ``fleet.json`` true while children come and go, and cleans up after a killed launcher."""

import os
from contextlib import suppress

from pandal.child import ChildExit
from pandal.datadir import DataDir
from pandal.errors import StateUnreadable
from pandal.fleet_state import FleetState, read_fleet_state, remove_fleet_state, write_fleet_state
from pandal.plan import FleetPlan
from pandal.processes import ProcessId, identify, wait_gone_or_kill
from pandal.screen import Screen

LEFTOVER_PATIENCE_S = 3.0


class FleetRecord:
    """Hears of children from the supervisor; tells the data directory, and the user of deaths."""

    def __init__(self, plan: FleetPlan, screen: Screen) -> None:
        self._plan = plan
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
            quota_url=self._plan.quota_url,
            ledger_url=self._plan.data_dir.ledger_url,
            policy_file=str(self._plan.data_dir.policies),
            model=self._plan.served_model,
            replica_urls={r.name: r.endpoint.url for r in self._plan.upstreams},
            children=dict(self._children),
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
