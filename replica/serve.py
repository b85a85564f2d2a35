"""A replica's life: up at once, ready when loaded, drained on SIGTERM, gone with its engine."""

import asyncio
import contextlib
import logging
import signal
import socket
import time
from collections.abc import Iterator
from typing import Any

import uvicorn

from replica.app import create_app
from replica.engine.engine import Engine
from replica.engine.watchdog import Watchdog
from replica.settings import Settings

_KEEP_ALIVE_S = 75  # longer than a gateway's pool keeps a connection idle
_CLOSE_TIMEOUT_S = 5  # for responses on their way after the engine has gone

logger = logging.getLogger(__name__)


class _Server(uvicorn.Server):
    """Leaves signals alone: draining comes before closing."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(settings: Settings) -> int:
    """The process's exit code."""
    stop = _stop_signal()  # first: from here on nobody ends us but we ourselves
    try:
        listener = socket.create_server((settings.host, settings.port), backlog=2048)
    except OSError as exc:
        logger.error("cannot listen", extra={"port": settings.port, "error": str(exc)})  # noqa: TRY400 - no bug
        return 1
    with listener:
        engine = Engine(
            settings.engine_config(),
            model_name=settings.name,
            max_num_live=settings.max_num_seqs + settings.max_num_waiting,
            # OpenMP reads it when the process starts.
            launcher=("/usr/bin/env", f"OMP_WAIT_POLICY={settings.omp_wait_policy}"),
            watchdog=Watchdog(
                step_timeout_s=settings.step_timeout_s,
                exit_timeout_s=settings.hang_exit_timeout_s,
                monotonic_s=time.monotonic,
            ),
            monotonic_s=time.monotonic,
        )
        app = create_app(engine, max_body_bytes=settings.max_body_bytes)
        server = _Server(
            uvicorn.Config(
                app,
                http="httptools",
                lifespan="off",
                ws="none",
                access_log=False,
                log_config=None,
                server_header=False,
                timeout_keep_alive=_KEEP_ALIVE_S,
                timeout_graceful_shutdown=_CLOSE_TIMEOUT_S,
            )
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(server.serve(sockets=[listener]), name="http")
            running = group.create_task(engine.run(), name="engine")
            exit_code = await _until_over(engine, running, stop, settings)
            server.should_exit = True
    if exit_code != 0:
        # The log's last line: what a supervisor shows of it.
        logger.error("replica failed", extra={"error": engine.state.detail})
    return exit_code


async def _until_over(
    engine: Engine, running: asyncio.Task[None], stop: asyncio.Future[str], settings: Settings
) -> int:
    ends: set[asyncio.Future[Any]] = {stop, running}  # of different kinds
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    if running.done():
        stop.cancel()
        await asyncio.sleep(settings.failure_linger_s)
        return 1
    logger.info("draining", extra={"signal": stop.result()})
    draining = asyncio.create_task(engine.drain(settings.drain_timeout_s), name="drain")
    await asyncio.wait({draining, running}, return_when=asyncio.FIRST_COMPLETED)
    if running.done():
        draining.cancel()
        return 1
    is_drained = await draining
    engine.stop()
    # A process that is still starting has no ear yet: cancelling ends it, too.
    await asyncio.wait({running}, timeout=_CLOSE_TIMEOUT_S)
    running.cancel()
    return 0 if is_drained else 1


def _stop_signal() -> asyncio.Future[str]:
    """Name of the first SIGTERM or SIGINT from now on."""
    received: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def note(name: str) -> None:
        if not received.done():
            received.set_result(name)

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, note, number.name)
    return received
