"""A replica's life: up at once, ready when loaded, drained on SIGTERM, gone with its engine."""

import asyncio
import logging
import secrets
import signal
import socket
import time
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from replica.engine.engine import Engine
from replica.engine.served_names import ServedNames
from replica.engine.watchdog import Watchdog
from replica.settings import Settings
from replica.usage_journal import UsageJournal

if TYPE_CHECKING:
    from replica.http_server import HttpServer

# After the time to drain, and together under what Kubernetes' 30 s leave of the usual 20, with what
# the server takes to close (CLOSE_TIMEOUT_S and CANCEL_TIMEOUT_S there):
_ABORT_TIMEOUT_S = 3.0  # for the engine to count what it is made to stop: a step or two
_ENGINE_END_TIMEOUT_S = 2.0
_JOURNAL_TIMEOUT_S = 0.5  # for what is not written yet: a few lines
ENDING_S = _ABORT_TIMEOUT_S + _ENGINE_END_TIMEOUT_S + _JOURNAL_TIMEOUT_S

logger = logging.getLogger(__name__)


async def serve(settings: Settings) -> int:
    """The process's exit code."""
    stop = _stop_signal()  # first: from here on nobody ends us but we ourselves
    try:
        listener = socket.create_server((settings.host, settings.port), backlog=2048)
    except OSError as exc:
        logger.error("cannot listen", extra={"port": settings.port, "error": str(exc)})  # noqa: TRY400 - no bug
        return 1
    journal = _journal(settings)
    engine = _engine(settings)
    with listener:
        async with asyncio.TaskGroup() as group:
            running = group.create_task(_logged(engine.run()), name="engine")
            server = await asyncio.to_thread(_http_server, engine, journal, settings)
            http = group.create_task(_logged(server.serve(listener)), name="http")
            ends: set[asyncio.Future[Any]] = {stop, running, http}  # of different kinds
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            give_up_at_s = time.monotonic() + settings.drain_timeout_s
            server.end_reading()
            if stop.done():
                logger.info("draining", extra={"signal": stop.result()})
                exit_code = await _drain(engine, running, give_up_at_s)
            else:
                exit_code = await _linger(engine, running, settings.failure_linger_s)
            server.close(give_up_at_s - time.monotonic())
    if journal is not None:
        journal.stop(_JOURNAL_TIMEOUT_S)
    if exit_code != 0:
        # The log's last line: what a supervisor shows of it.
        logger.error("replica failed", extra={"error": engine.state.detail})
    return exit_code


def _journal(settings: Settings) -> UsageJournal | None:
    if settings.usage_journal_dir is None:
        return None
    journal = UsageJournal(
        settings.usage_journal_dir,
        boot_id=f"{time.time_ns() // 1_000_000:012x}{secrets.token_hex(4)}",
        max_bytes=settings.usage_journal_bytes,
    )
    journal.start()
    return journal


def _engine(settings: Settings) -> Engine:
    return Engine(
        settings.engine_config(),
        names=ServedNames(settings.name, list(settings.adapters)),
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


def _http_server(engine: Engine, journal: UsageJournal | None, settings: Settings) -> "HttpServer":
    # Not at the top: a second of imports, meanwhile the engine starts.
    from replica.http_server import HttpServer

    return HttpServer(engine, journal, settings)


async def _logged(flow: Awaitable[None]) -> None:
    """A defect ends the process in good order, and not with whatever it interrupts."""
    try:
        await flow
    except Exception:
        logger.exception("replica task failed")


async def _drain(engine: Engine, running: asyncio.Task[None], give_up_at_s: float) -> int:
    draining = asyncio.create_task(
        engine.drain(give_up_at_s - time.monotonic(), abort_timeout_s=_ABORT_TIMEOUT_S),
        name="drain",
    )
    await asyncio.wait({draining, running}, return_when=asyncio.FIRST_COMPLETED)
    if running.done():
        draining.cancel()
        return 1
    is_drained = await draining
    engine.stop()
    # A process that is still starting has no ear yet: cancelling ends it, too.
    end_at_s = give_up_at_s + _ABORT_TIMEOUT_S + _ENGINE_END_TIMEOUT_S
    await asyncio.wait({running}, timeout=end_at_s - time.monotonic())
    running.cancel()
    return 0 if is_drained else 1


async def _linger(engine: Engine, running: asyncio.Task[None], linger_s: float) -> int:
    """The engine, or the server before it, is gone: whoever waits for it shall hear so."""
    engine.stop()
    await asyncio.sleep(linger_s)
    running.cancel()
    return 1


def _stop_signal() -> asyncio.Future[str]:
    """Name of the first SIGTERM or SIGINT from now on."""
    received: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def note(name: str) -> None:
        if not received.done():
            received.set_result(name)

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, note, number.name)
    return received
