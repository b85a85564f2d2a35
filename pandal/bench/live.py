"""What a run is doing while it does it, on standard error."""

import asyncio
import statistics
from collections.abc import Callable
from math import isfinite
from typing import Final, NoReturn, TextIO

from pandal.bench.run import Run

_LINE_INTERVAL_S: Final = 1.0  # a terminal's one line is written over
_PLAIN_INTERVAL_S: Final = 5.0
_NUM_RECENT: Final = 500  # a median of all would cost the generator more the longer it runs
_CLEAR_LINE: Final = "\r\x1b[K"


class LiveView:
    """A terminal gets one line that changes, anything else a plain line every five seconds."""

    def __init__(self, say: Callable[[str], None], stream: TextIO) -> None:
        self._say = say
        self._stream = stream
        self._is_terminal = stream.isatty()

    def begin(self, heading: str) -> None:
        self._say(f"loading {heading}")

    async def watch(self, run: Run, sending_s: float) -> NoReturn:
        """Until cancelled."""
        try:
            while True:
                await asyncio.sleep(_LINE_INTERVAL_S if self._is_terminal else _PLAIN_INTERVAL_S)
                self._show(state_line(run, sending_s))
        finally:
            self._write(_CLEAR_LINE if self._is_terminal else "")

    def _show(self, text: str) -> None:
        if self._is_terminal:
            self._write(_CLEAR_LINE + text)
        else:
            self._say(text)

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def state_line(run: Run, sending_s: float) -> str:
    num_done = len(run.records)
    parts = [f"{run.num_sent} sent", f"{num_done} done", f"{run.num_sent - num_done} in flight"]
    recent_s = [r.ttft_s for r in run.records[-_NUM_RECENT:] if r.ttft_s is not None]
    if recent_s:
        parts.append(f"TTFT p50 {statistics.median(recent_s) * 1e3:.0f} ms")
    if isfinite(sending_s):
        left_s = sending_s - run.elapsed_s
        parts.append(f"{left_s:.0f} s left" if left_s > 0 else "waiting for what is in flight")
    return ", ".join(parts)
