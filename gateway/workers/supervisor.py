"""Starts the workers, and those that die anew; ends when told to, or when they cannot start."""

import asyncio
import logging
import signal
import sys
from pathlib import Path

from gateway.backoff import backoff_s
from gateway.workers.listening import bound
from gateway.workers.place import Place, encode_place

logger = logging.getLogger(__name__)

_BACKOFF_S = (0.1, 0.5, 1.0, 5.0)
_HOPELESS = (2, 3)  # exit codes of __main__ that a second try would not change


class Supervisor:
    def __init__(self, host: str, port: int, num_workers: int, folder: Path) -> None:
        self._host, self._port = host, port
        self._folder = folder
        self._num_workers = num_workers
        self._running: dict[int, asyncio.subprocess.Process] = {}  # by index
        self._is_stopping = False
        self._exit_code = 0

    async def run(self) -> int:
        """The exit code.  Raises OSError if the port is taken."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop)
        bound(self._host, self._port, is_shared=False).close()  # else another gateway's, too
        with bound(self._host, self._port) as reserved:
            port = reserved.getsockname()[1]
            async with asyncio.TaskGroup() as group:
                for index in range(self._num_workers):
                    place = Place(index, self._num_workers, port, self._folder)
                    group.create_task(self._keep(place))
        return self._exit_code

    async def _keep(self, place: Place) -> None:
        num_failures = 0
        while not self._is_stopping:
            code = await self._run_one(place)
            if self._is_stopping:
                if self._exit_code == 0:  # the first failure is told
                    self._exit_code = code
                return
            if code in _HOPELESS:
                self._exit_code = code
                self._stop()
                return
            num_failures += 1
            logger.error("worker ended, starting another", extra={"exit_code": code})
            await asyncio.sleep(backoff_s(_BACKOFF_S, num_failures))

    async def _run_one(self, place: Place) -> int:
        """Its standard input ends with this process, however that ends."""
        command = [sys.executable, "-m", "gateway", encode_place(place)]
        process = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.PIPE)
        logger.info("worker started", extra={"pid": process.pid})
        self._running[place.index] = process
        if self._is_stopping:  # it was told while this one was being started
            process.terminate()
        try:
            return await process.wait()
        finally:
            del self._running[place.index]

    def _stop(self) -> None:
        self._is_stopping = True
        for process in self._running.values():
            process.terminate()
