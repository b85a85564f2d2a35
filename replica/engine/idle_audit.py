"""Whether the accounting of blocks holds, asked when the engine has become idle: the answer is a
metric, and never the end of a server that still serves.
"""

import logging
from collections.abc import Callable
from typing import Final

_INTERVAL_S: Final = 10.0  # it looks at every block: milliseconds, and none while there is work

logger = logging.getLogger(__name__)


class IdleAudit:
    def __init__(self, check: Callable[[], None]) -> None:
        """check: raises AssertionError."""
        self._check = check
        self._is_owed = False
        self._last_at_s: float | None = None
        self.num_audits = 0
        self.num_faults = 0

    def owe(self) -> None:
        """Something has changed since the last one."""
        self._is_owed = True

    def due_in_s(self, now_s: float) -> float | None:
        """None: not before something changes."""
        if not self._is_owed:
            return None
        return 0.0 if self._last_at_s is None else max(0.0, self._last_at_s + _INTERVAL_S - now_s)

    def run_if_due(self, now_s: float) -> bool:
        if self.due_in_s(now_s) != 0.0:
            return False
        self._is_owed, self._last_at_s = False, now_s
        self.num_audits += 1
        try:
            self._check()
        except AssertionError as exc:
            self.num_faults += 1
            logger.error("the accounting of blocks is off", extra={"error": str(exc)})  # noqa: TRY400 - the message says which
        return True
