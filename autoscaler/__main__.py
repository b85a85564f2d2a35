"""``python -m autoscaler``: environment -> settings -> the loops of a namespace's pools.

Exit status: 0 stopped, 2 set up wrongly, 1 a defect.
"""

import asyncio
import logging
import signal
import sys

from autoscaler.app import serve
from autoscaler.errors import BadPolicy
from autoscaler.settings import PREFIX, Settings, unread_variables
from contracts.environment import BadSettings, read_settings
from contracts.logs import configure_logging, log_bad_settings

logger = logging.getLogger("autoscaler")


def main() -> int:
    try:
        settings = read_settings(Settings, PREFIX, unread_variables())
    except BadSettings as exc:
        log_bad_settings("autoscaler", exc.faults)
        return 2
    configure_logging("autoscaler", settings.log_level)
    logging.captureWarnings(True)
    try:
        asyncio.run(_serve(settings))
    except BadPolicy as exc:
        logger.critical("autoscaler cannot start", extra={"error": str(exc)})
        return 2
    except OSError as exc:
        logger.critical("autoscaler cannot start", extra={"error": exc.strerror})
        return 2
    except Exception:
        logger.exception("autoscaler failed")
        return 1
    logger.info("stopped")
    return 0


async def _serve(settings: Settings) -> None:
    stop = asyncio.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, stop.set)
    await serve(settings, stop)


if __name__ == "__main__":
    sys.exit(main())
