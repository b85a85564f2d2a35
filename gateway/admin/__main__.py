"""``python -m gateway.admin``: environment -> settings -> server.

Exit status: 0 stopped, 2 set up wrongly, 3 the port is taken, 1 a defect.
"""

import asyncio
import contextlib
import errno
import logging
import signal
import socket
import sys
from collections.abc import Generator

import uvicorn

from contracts.environment import BadSettings, read_settings
from contracts.logs import configure_logging, log_bad_settings
from gateway.admin.app import create_admin
from gateway.admin.settings import PREFIX, Settings, unread_variables
from gateway.workers.listening import bound

logger = logging.getLogger("gateway.admin")

_GRACE_S = 5  # for requests that run when it is told to stop


def main() -> int:
    try:
        settings = read_settings(Settings, PREFIX, unread_variables())
    except BadSettings as exc:
        log_bad_settings("admin", exc.faults)
        return 2
    configure_logging("admin", settings.log_level)
    try:
        with bound(settings.host, settings.port, is_shared=False) as listener:
            asyncio.run(_serve(settings, listener))
    except OSError as exc:
        fields = {"path": str(exc.filename), "error": exc.strerror}
        logger.critical("admin cannot start", extra=fields)
        return 3 if exc.errno == errno.EADDRINUSE else 2
    except Exception:
        logger.exception("admin failed")
        return 1
    logger.info("stopped")
    return 0


async def _serve(settings: Settings, listener: socket.socket) -> None:
    async with create_admin(settings) as app:
        config = uvicorn.Config(
            app,
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            lifespan="off",
            timeout_graceful_shutdown=_GRACE_S,
        )
        logger.info("listening", extra={"port": listener.getsockname()[1]})
        await _Server(config).serve([listener])


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Without raising the signal again: a stop is a success."""
        loop = asyncio.get_running_loop()
        handled = (signal.SIGINT, signal.SIGTERM)
        for number in handled:
            loop.add_signal_handler(number, self._stop)
        try:
            yield
        finally:
            for number in handled:
                loop.remove_signal_handler(number)

    def _stop(self) -> None:
        self.should_exit = True


if __name__ == "__main__":
    sys.exit(main())
