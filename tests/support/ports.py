"""Ports of this machine."""

import secrets
import socket

_FIRST, _NUM = 20_000, 12_000  # below what Linux gives whoever asks for any port, or calls somebody


def free_port() -> int:
    """One that nobody has, nor is given by the system until whoever it is for has bound it."""
    while True:
        port = _FIRST + secrets.randbelow(_NUM)
        if _is_free(port):
            return port


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
