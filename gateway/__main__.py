"""``python -m gateway``: environment -> settings -> server.

Exit status: 0 stopped, 2 set up wrongly, 3 the port is taken, 1 a defect.
"""

import gc
import logging
import sys

import uvloop

from contracts.environment import BadSettings, read_settings
from contracts.logs import configure_logging, log_bad_settings
from gateway.app import create_app
from gateway.line_writer import LineWriter
from gateway.protocol import ConnectionLimits
from gateway.server import GatewayServer, Listener
from gateway.settings import PREFIX, Settings, unread_variables

logger = logging.getLogger("gateway")

_STDERR = 2
_GC_THRESHOLDS = 20_000, 20, 20  # requests leave few cycles behind, and objects by the thousand


def main() -> int:
    try:
        settings = read_settings(Settings, PREFIX, unread_variables())
    except BadSettings as exc:
        log_bad_settings("gateway", exc.faults)
        return 2
    log = LineWriter(_STDERR)
    configure_logging("gateway", settings.log_level, log)
    logging.captureWarnings(True)  # nothing else may write to standard error
    # It tells of each attempt at a broker that is gone; outbox.kafka tells the fact, once.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    try:
        uvloop.run(_serve(settings, log))
    except OSError as exc:
        fields = {"path": str(exc.filename), "error": exc.strerror}
        logger.critical("gateway cannot start", extra=fields)
        return 2
    except Exception:
        logger.exception("gateway failed")
        return 1
    logger.info("stopped")
    return 0


async def _serve(settings: Settings, log: LineWriter) -> None:
    async with create_app(settings, log.write) as gateway:
        gc.collect()
        gc.freeze()  # what exists now stays: no collection need look at it again
        gc.set_threshold(*_GC_THRESHOLDS)
        await GatewayServer(gateway, _listener(settings), _limits(settings)).serve()


def _listener(settings: Settings) -> Listener:
    return Listener(
        host=settings.host,
        port=settings.port,
        keep_alive_timeout_s=settings.keep_alive_timeout_s,
        drain_timeout_s=settings.drain_timeout_s,
    )


def _limits(settings: Settings) -> ConnectionLimits:
    return ConnectionLimits(
        max_body_bytes=settings.max_body_bytes,
        read_timeout_s=settings.read_timeout_s,
        write_timeout_s=settings.write_timeout_s,
        answer_timeout_s=settings.answer_timeout_s,
    )


if __name__ == "__main__":
    sys.exit(main())
