"""One JSON line per event: constant message, declared fields, and nothing a client typed."""

import io
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final, TextIO

import msgspec

LOG_FIELDS: Final = frozenset({
    "tenant_id", "key_id", "request_id", "replica", "model", "endpoint", "status", "reason",
    "outcome", "is_stream", "input_tokens", "output_tokens", "ttft_ms", "auth_ms", "admit_ms",
    "latency_ms",
    "count_ms", "queue_ms", "send_ms",
    "num_events", "num_waiting", "num_running", "num_blocks", "path", "port",
    "pid", "exit_code", "signal", "version", "segment", "size_bytes", "source_id", "next_offset",
    "num_posted", "num_repeated", "num_unpriced", "num_dead", "error", "topic", "partition",
    "open_s", "route", "route_costs", "home", "engine", "pool", "num_wanted", "num_actions",
    "num_breaks",
    "alert_id", "num_raised", "num_shadows", "who", "role", "method", "address",
})  # fmt: skip
"""Every ``extra`` field a logger may carry.  A prompt, an answer or a key is not among them."""


class JsonFormatter(logging.Formatter):
    """Renders the declared fields of a record; an undeclared one is dropped, not printed."""

    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "at": datetime.fromtimestamp(record.created, UTC),
            "level": record.levelname.lower(),
            "service": self._service,
            "logger": record.name,
            "message": record.getMessage(),
        }
        line.update({k: v for k, v in vars(record).items() if k in LOG_FIELDS})
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()


def configure_logging(service: str, level: str, handler: logging.Handler | None = None) -> None:
    """Root logger to ``handler``, or to standard error.  Called once, by a service's ``__main__``.

    To standard error means that whoever logs waits for whoever reads.
    """
    handler = logging.StreamHandler(_standard_error()) if handler is None else handler
    handler.setFormatter(JsonFormatter(service))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def _standard_error() -> TextIO:
    """Buffered by lines also under PYTHONUNBUFFERED, as in images.

    Python's text layer drops the rest of a line of which an unbuffered stream takes a part, as a
    full disk does, and the next line would go on where it broke off.
    """
    raw = getattr(sys.stderr, "buffer", None)
    if not isinstance(raw, io.RawIOBase):
        return sys.stderr
    unowned = io.FileIO(raw.fileno(), "w", closefd=False)  # it outlives whoever logs
    buffered = io.BufferedWriter(unowned)
    return io.TextIOWrapper(buffered, "utf-8", "backslashreplace", line_buffering=True)


def log_bad_settings(service: str, faults: Mapping[str, str]) -> None:
    """``faults``: by variable.  For a service that cannot start, and so has set up no log.

    No traceback: whoever wrote a setting needs its name and nothing of ours.
    """
    configure_logging(service, "info")
    for name, fault in faults.items():
        logging.getLogger(service).critical("bad setting", extra={"path": name, "error": fault})
