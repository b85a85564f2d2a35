"""``python -m gateway``: environment -> settings -> server.

Exit status: 0 stopped, 2 set up wrongly, 3 the port is taken, 1 a defect.
"""

import gc
import logging
import sys

import uvloop
from pydantic import ValidationError
from pydantic_settings import SettingsError

from contracts.environment import variable_of
from contracts.logs import configure_logging
from gateway.app import create_app
from gateway.protocol import ConnectionLimits
from gateway.server import GatewayServer, Listener
from gateway.settings import PREFIX, Settings, unread_variables

logger = logging.getLogger("gateway")


def main() -> int:
    try:
        settings = Settings()
        faults = dict(unread_variables())
    except (ValidationError, SettingsError) as exc:
        faults = {**_faults(exc), **unread_variables()}
    if faults:
        configure_logging("gateway", "info")
        for name, fault in faults.items():
            # No traceback: whoever wrote the setting needs its name and nothing of ours.
            logger.critical("bad setting", extra={"path": name, "error": fault})
        return 2
    configure_logging("gateway", settings.log_level)
    # It tells of each attempt at a broker that is gone; outbox.kafka tells the fact, once.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    try:
        uvloop.run(_serve(settings))
    except OSError as exc:
        fields = {"path": str(exc.filename), "error": exc.strerror}
        logger.critical("gateway cannot start", extra=fields)
        return 2
    except Exception:
        logger.exception("gateway failed")
        return 1
    logger.info("stopped")
    return 0


def _faults(exc: ValidationError | SettingsError) -> dict[str, str]:
    """By variable, without what was given: it may hold a secret."""
    if isinstance(exc, SettingsError):  # not JSON, where the setting is a list or a mapping
        return {PREFIX: str(exc)}
    errors = exc.errors(include_input=False, include_url=False)
    return {variable_of(PREFIX, e["loc"] or ("settings",)): e["msg"] for e in errors}


async def _serve(settings: Settings) -> None:
    async with create_app(settings) as gateway:
        gc.collect()
        gc.freeze()  # what exists now stays: no collection need look at it again
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
