"""``python -m billing`` as a process of its own, as operators run it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.support.waiting import PATIENCE_S, eventually


class BillingProcess:
    """Logs to ``log_path``.  The owner ends it: ``terminate`` or ``kill``."""

    def __init__(self, log_path: Path, **environment: str) -> None:
        self.log_path = log_path
        kept = {k: v for k, v in os.environ.items() if not k.startswith("BILLING_")}
        with log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "billing"], env={**kept, **environment}, stderr=log
            )

    def __enter__(self) -> "BillingProcess":
        return self

    def __exit__(self, *_exc: object) -> None:
        self.kill()

    def terminate(self) -> int:
        """SIGTERM; the exit status."""
        self._process.send_signal(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def wait(self) -> int:
        return self._process.wait(PATIENCE_S)

    def log(self) -> str:
        return self.log_path.read_text()

    def until_log_has(self, message: str, times: int = 1) -> None:
        def is_there() -> bool:
            assert self._process.poll() is None, self.log()
            return self.log().count(f'"message":"{message}"') >= times

        eventually(is_there, f"{message!r} in the log of billing")
