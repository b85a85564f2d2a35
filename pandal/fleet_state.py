"""``fleet.json``: what other commands need to know of the fleet that runs on a data directory."""

import msgspec

from contracts.errors import UNDECODABLE
from pandal.datadir import DataDir
from pandal.errors import StateUnreadable
from pandal.private_file import replace_private
from pandal.processes import ProcessId, is_alive


class FleetState(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="fleet.v1"):
    launcher: ProcessId
    gateway_url: str
    quota_url: str
    ledger_url: str
    policy_file: str
    model: str
    replica_urls: dict[str, str]
    children: dict[str, ProcessId]


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
