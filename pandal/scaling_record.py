"""The local fleet's last decision, kept for ``pandal explain``."""

from pathlib import Path
from typing import Final

import msgspec

from autoscaler.kubernetes.status import Seen, is_news, status_of
from autoscaler.kubernetes.wire import Json
from autoscaler.reconciler import Report
from pandal.private_file import replace_private

_RENEWED_AFTER_S: Final = 60.0  # without news: a decision's figures grow old
_SEEN: Final = Seen(generation=0, is_dry_run=False, conditions=(), unschedulable=None)


class ScalingRecord:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._written: tuple[Json, float] | None = None  # and when

    def note(self, report: Report) -> None:
        """Written when something changed: a file a tick would wear a disk for nothing."""
        status, now_s = status_of(report, _SEEN), report.decision.at_s
        if self._written is not None:
            before, at_s = self._written
            if now_s - at_s < _RENEWED_AFTER_S and not is_news(before, status):
                return
        replace_private(self._path, msgspec.json.encode(status))
        self._written = status, now_s
