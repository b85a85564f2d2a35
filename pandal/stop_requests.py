"""Ctrl-C and SIGTERM: the first asks for an orderly stop, a second one hurries it."""

import asyncio
import signal
from collections.abc import Callable

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopRequests:
    def __init__(self, hurry: Callable[[], None]) -> None:
        self._hurry = hurry
        self._first: signal.Signals | None = None
        self._asked = asyncio.Event()

    def listen(self) -> None:
        """Replaces the process's handlers for as long as the running loop lives."""
        loop = asyncio.get_running_loop()
        for signal_ in _SIGNALS:
            loop.add_signal_handler(signal_, self._receive, signal_)

    async def wait(self) -> signal.Signals:
        await self._asked.wait()
        assert self._first is not None
        return self._first

    def _receive(self, signal_: signal.Signals) -> None:
        if self._first is not None:
            self._hurry()
            return
        self._first = signal_
        self._asked.set()
