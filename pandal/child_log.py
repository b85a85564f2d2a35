"""The log file of a child: one per name, the run before kept beside it."""

import os
from pathlib import Path
from typing import Any

import msgspec

from contracts.errors import UNDECODABLE

_TAIL_BYTES = 32_768
_LONGEST_LINE_CHARS = 300
_FAILURE_LEVELS = frozenset({"error", "critical"})


def rotate(path: Path) -> None:
    """Called once per launch, so that disk use is bounded by two launches."""
    if path.exists():
        path.replace(path.with_name(path.name + ".1"))


def last_error(path: Path) -> str | None:
    """The last line that says why the writer ended; ``None`` if there is none."""
    lines = [line for line in _tail(path).splitlines() if _bare(line)]
    for line in reversed(lines):
        message = _failure_message(line)
        if message is not None:
            return _shortened(message)
    told = bool(lines) and _record(lines[-1]) is None  # a record of success is no reason
    return _shortened(_bare(lines[-1])) if told else None


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            size_bytes = file.seek(0, os.SEEK_END)
            file.seek(max(0, size_bytes - _TAIL_BYTES))
            return file.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return ""


def _failure_message(line: str) -> str | None:
    """Services log JSON lines (contracts.logs): message, and the error in a field of that name."""
    record = _record(line)
    if record is None or record.get("level") not in _FAILURE_LEVELS:
        return None
    parts = [record.get(field) for field in ("message", "path", "reason", "error")]
    traceback = record.get("traceback")
    if isinstance(traceback, str) and not record.get("error"):
        parts.append(traceback.strip().splitlines()[-1])
    return ": ".join(str(part) for part in parts if part)


def _record(line: str) -> dict[str, Any] | None:
    try:
        return msgspec.json.decode(line, type=dict[str, Any])  # a log line may hold anything
    except (*UNDECODABLE, UnicodeEncodeError):
        return None


def _bare(line: str) -> str:
    """Without the frame that Python draws around the tracebacks of exception groups."""
    return line.strip().strip("|+-").strip()


def _shortened(line: str) -> str:
    return line if len(line) <= _LONGEST_LINE_CHARS else line[:_LONGEST_LINE_CHARS] + "…"
