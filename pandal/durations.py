"""Spans of time as people write them on a command line: 30m, 24h, 90d."""

import re
from datetime import timedelta
from typing import Final

from pandal.errors import BadOption

_DURATION: Final = re.compile(r"(\d{1,6})([smhd])", re.ASCII)
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def parse_duration(text: str, *, option: str) -> timedelta:
    """Raises BadOption."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise BadOption(f"{option}: expected a time such as 30m, 24h or 90d, got {text!r}")
    return timedelta(**{_UNITS[match[2]]: int(match[1])})
