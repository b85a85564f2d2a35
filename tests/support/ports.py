"""Ports of this machine."""

import os
import secrets
import socket
from collections import deque

_FIRST, _NUM = 20_000, 12_000  # below what Linux gives whoever asks for any port, or calls somebody
_APART = 8  # a fleet takes some behind its own, too
_given: deque[int] = deque(maxlen=256)


def free_port() -> int:
    """One that nobody has, nor is given by the system until whoever it is for has bound it.

    Nor is it given here again meanwhile, nor in another worker of the same test run.
    """
    ports = _own()
    recent = list(_given)[-max(1, len(ports) // (4 * _APART)) :]  # near half of them, at most
    while True:
        port = secrets.choice(ports)
        if all(abs(port - other) >= _APART for other in recent) and _is_free(port):
            _given.append(port)
            return port


def _own() -> range:
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    share = _NUM // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    return range(_FIRST + number * share, _FIRST + (number + 1) * share - _APART)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
