"""``python -m gateway``: environment -> settings -> server, or several of them.

Exit status: 0 stopped, 2 set up wrongly, 3 the port is taken, 1 a defect.
"""

import asyncio
import errno
import gc
import logging
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import uvloop

from contracts.environment import BadSettings, read_settings
from contracts.logs import configure_logging, log_bad_settings
from gateway.app import create_app
from gateway.client_connection import ConnectionLimits
from gateway.line_writer import LineWriter
from gateway.server import GatewayServer, Listener
from gateway.settings import PREFIX, Settings, unread_variables
from gateway.workers.listening import bound
from gateway.workers.place import Place, decode_place
from gateway.workers.supervisor import Supervisor

logger = logging.getLogger("gateway")

_STDIN, _STDERR = 0, 2
_READY_PATIENCE_S = 2.0  # of a worker; most are ready within a poll of their replicas
_GC_THRESHOLDS = 20_000, 20, 20  # requests leave few cycles behind, and objects by the thousand


def main(arguments: Sequence[str]) -> int:
    """``arguments``: none, or a worker's place."""
    try:
        settings = read_settings(Settings, PREFIX, unread_variables())
    except BadSettings as exc:
        log_bad_settings("gateway", exc.faults)
        return 2
    if arguments:
        place = decode_place(arguments[0])
        return _run(lambda log: uvloop.run(_serve(settings, log, place)), settings, place.folder)
    if settings.workers == 1:
        return _run(lambda log: uvloop.run(_serve(settings, log, None)), settings, None)
    with tempfile.TemporaryDirectory() as name:
        supervisor = Supervisor(settings.host, settings.port, settings.workers, Path(name))
        return _run(lambda _: asyncio.run(supervisor.run()), settings, Path(name))


def _run(serve: Callable[[LineWriter], int], settings: Settings, shared: Path | None) -> int:
    """``shared``: the folder of all workers, who also share the log."""
    log = LineWriter(_STDERR, shared_lock=None if shared is None else shared / "log.lock")
    configure_logging("gateway", settings.log_level, log)
    logging.captureWarnings(True)  # nothing else may write to standard error
    # It tells of each attempt at a broker that is gone; outbox.kafka tells the fact, once.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    try:
        code = serve(log)
    except OSError as exc:
        fields = {"path": str(exc.filename), "error": exc.strerror}
        logger.critical("gateway cannot start", extra=fields)
        return 3 if exc.errno == errno.EADDRINUSE else 2
    except Exception:
        logger.exception("gateway failed")
        return 1
    logger.info("stopped")
    return code


async def _serve(settings: Settings, log: LineWriter, place: Place | None) -> int:
    async with create_app(settings, log.write, place=place) as gateway:
        gc.collect()
        gc.freeze()  # what exists now stays: no collection need look at it again
        gc.set_threshold(*_GC_THRESHOLDS)
        server = GatewayServer(gateway, _listener(settings, place), _limits(settings))
        if place is None:
            await server.serve()
        else:
            _end_with_parent(server)
            await server.serve([bound(settings.host, place.port)])
    return 0


def _end_with_parent(server: GatewayServer) -> None:
    """Which never writes to our standard input: what can be read there is its end."""
    loop = asyncio.get_running_loop()

    def stop() -> None:
        loop.remove_reader(_STDIN)
        server.stop()

    loop.add_reader(_STDIN, stop)


def _listener(settings: Settings, place: Place | None) -> Listener:
    return Listener(
        host=settings.host,
        port=settings.port,
        keep_alive_timeout_s=settings.keep_alive_timeout_s,
        drain_timeout_s=settings.drain_timeout_s,
        # A worker that joins others must not answer for them before it can.
        ready_patience_s=0.0 if place is None else _READY_PATIENCE_S,
    )


def _limits(settings: Settings) -> ConnectionLimits:
    return ConnectionLimits(
        max_body_bytes=settings.max_body_bytes,
        read_timeout_s=settings.read_timeout_s,
        write_timeout_s=settings.write_timeout_s,
        answer_timeout_s=settings.answer_timeout_s,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
