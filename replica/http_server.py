"""The HTTP side of a replica: the application on a listening socket, and its end.

What it imports takes as long as an engine's start: ``replica.serve`` does both at once.
"""

import asyncio
import contextlib
import math
import socket
from collections.abc import Iterator
from typing import Final

import uvicorn

from replica.api.patience import Patience
from replica.api.protocol import ResettableProtocol
from replica.app import create_app
from replica.engine.engine import Engine
from replica.settings import Settings
from replica.usage_journal import UsageJournal

_MAX_CHOICES: Final = 16  # of one request, and no more than can run at once
_KEEP_ALIVE_S: Final = 75  # longer than a gateway's pool keeps a connection idle
CLOSE_TIMEOUT_S: Final = 2.0  # at least, for answers on their way when all else is over
# For the server, which would log each answer that it ends as a defect.
CANCEL_TIMEOUT_S: Final = 1.0


class _Server(uvicorn.Server):
    """Leaves signals alone: draining comes before closing."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpServer:
    def __init__(self, engine: Engine, journal: UsageJournal | None, settings: Settings) -> None:
        self._patience = Patience(
            read_timeout_s=settings.read_timeout_s, write_timeout_s=settings.write_timeout_s
        )
        app = create_app(
            engine,
            self._patience,
            journal,
            max_body_bytes=settings.max_body_bytes,
            max_choices=min(_MAX_CHOICES, settings.max_num_seqs),
        )
        self._server = _Server(
            uvicorn.Config(
                app,
                http=ResettableProtocol,
                lifespan="off",
                ws="none",
                access_log=False,
                log_config=None,
                server_header=False,
                timeout_keep_alive=_KEEP_ALIVE_S,
            )
        )

    async def serve(self, listener: socket.socket) -> None:
        """Until ``close``."""
        await self._server.serve(sockets=[listener])

    def end_reading(self) -> None:
        """No body that is not here yet is waited for."""
        self._patience.end_reading()

    def close(self, left_s: float) -> None:
        """Answers on their way are sent, for as long as draining may take.

        The server's own patience is longer.
        """
        left_s = max(left_s, CLOSE_TIMEOUT_S)
        asyncio.get_running_loop().call_later(left_s, self._patience.end_writing)
        self._server.config.timeout_graceful_shutdown = math.ceil(left_s + CANCEL_TIMEOUT_S)
        self._server.should_exit = True
