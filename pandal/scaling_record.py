"""The local fleet's last decision, kept for ``pandal explain``."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final, NoReturn

import msgspec

from autoscaler.kubernetes.status import Seen, is_news, status_of
from autoscaler.kubernetes.wire import Json
from autoscaler.reconciler import Report
from pandal.private_file import replace_private

_RENEWED_AFTER_S: Final = 60.0  # without news: a decision's figures grow old
_SEEN: Final = Seen(generation=0, is_dry_run=False, conditions=(), unschedulable=None)


class ScalingRecord:
    """A disk that is slow or full keeps no decision: what is noted is written beside the loop."""

    def __init__(self, path: Path, *, tell: Callable[[str], None]) -> None:
        self._path = path
        self._tell = tell
        self._noted: tuple[Json, float] | None = None  # and when; to be written
        self._written: tuple[Json, float] | None = None
        self._news = asyncio.Event()
        self._is_failing = False

    async def run(self) -> NoReturn:
        """Until cancelled."""
        while True:
            await self._news.wait()
            self._news.clear()
            await self.write_noted()

    def note(self, report: Report) -> None:
        """When something changed: a file a tick would wear a disk for nothing."""
        status, now_s = status_of(report, _SEEN), report.decision.at_s
        if self._written is not None:
            before, at_s = self._written
            if now_s - at_s < _RENEWED_AFTER_S and not is_news(before, status):
                return
        self._noted = status, now_s
        self._news.set()

    async def write_noted(self) -> None:
        """The latest; what cannot be written is noted again by the next tick."""
        noted, self._noted = self._noted, None
        if noted is None:
            return
        try:
            await asyncio.to_thread(replace_private, self._path, msgspec.json.encode(noted[0]))
        except OSError as exc:
            if not self._is_failing:  # once per outage
                self._tell(f"what the autoscaler decides is not kept: {exc.strerror}")
            self._is_failing = True
            return
        self._written, self._is_failing = noted, False
