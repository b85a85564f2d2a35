"""Waiting until the running gateway has read a new key."""

import time

from pandal.datadir import DataDir
from pandal.errors import Unreachable
from pandal.fleet_state import running_fleet
from pandal.http_client import get, parse_url

PATIENCE_S = 3.0  # the gateway re-reads the policy file within one second
_POLL_INTERVAL_S = 0.1
_ANSWER_TIMEOUT_S = 1.0


def wait_until_accepted(data_dir: DataDir, api_key: str) -> str:
    """Returns one line for people: whether the key works now, or when it will."""
    fleet = running_fleet(data_dir)
    if fleet is None:
        return "no fleet is running on this data directory; the key is valid at the next start"
    give_up_monotonic_s = time.monotonic() + PATIENCE_S
    while not _is_accepted(fleet.gateway_url, api_key):
        if time.monotonic() >= give_up_monotonic_s:
            return f"stored, but {fleet.gateway_url} does not accept the key yet"
        time.sleep(_POLL_INTERVAL_S)
    return f"accepted by {fleet.gateway_url}"


def _is_accepted(gateway_url: str, api_key: str) -> bool:
    gateway = parse_url(gateway_url, option="fleet.json")
    headers = {"authorization": f"Bearer {api_key}"}
    try:
        answer = get(gateway, "/v1/models", headers=headers, timeout_s=_ANSWER_TIMEOUT_S)
    except Unreachable:
        return False
    return answer.status == 200
