"""Requests begin in slices of time: between two the event loop looks at everything else.

When hundreds arrive at once, or are refused and asked again without a pause, one turn of the loop
would begin them all, and whatever else has come, a probe of /health or an answer's next token,
would wait for that.  In order: who comes while others wait waits behind them, and that wait is
part of all that is said of its time.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from gateway.exchange import Exchange

_SLICE_S: Final = 0.005
_GAP_S: Final = 0.001  # without a beginning: the loop has looked elsewhere


class Slices:
    def __init__(
        self, begin: Callable[[Exchange], object], monotonic_s: Callable[[], float]
    ) -> None:
        self._begin = begin
        self._monotonic_s = monotonic_s
        self._waiting: deque[Exchange] = deque()
        self._since_s = self._latest_s = float("-inf")  # the slice; its latest beginning was over

    def start(self, exchange: Exchange) -> None:
        """Now, or in one of the loop's next turns."""
        exchange.came_monotonic_s = now_s = self._monotonic_s()
        if not self._waiting:
            if now_s - self._latest_s > _GAP_S:
                self._since_s = now_s
            if now_s - self._since_s < _SLICE_S:
                self._begin(exchange)
                self._latest_s = self._monotonic_s()
                return
            self._go_on_soon()
        self._waiting.append(exchange)

    def _go_on_soon(self) -> None:
        asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        self._since_s = self._latest_s = self._monotonic_s()
        try:
            while self._waiting and self._latest_s - self._since_s < _SLICE_S:
                self._begin(self._waiting.popleft())
                self._latest_s = self._monotonic_s()
        finally:
            if self._waiting:
                self._go_on_soon()
