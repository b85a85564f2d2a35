"""Whether billing has booked: the demo's request, and all that a stopped gateway has written."""

import asyncio
from pathlib import Path
from typing import Literal

from billing.errors import LedgerMissing, LedgerUnavailable
from billing.ledger import Ledger
from billing.lookup import PostedEvent, find_event
from contracts.spool import SEGMENT_SUFFIX
from pandal.datadir import DataDir
from pandal.errors import FleetFailed
from pandal.polling import poll_until

_SPOOL_POLL_INTERVAL_S = 0.05
_EVENT_POLL_INTERVAL_S = 0.1
EVENT_PATIENCE_S = 15.0  # through the spool under a second; a Kafka group takes some to form


async def event_booked(ledger_url: str, request_id: str) -> PostedEvent:
    """Raises FleetFailed unless billing books the request in time."""
    try:
        async with asyncio.timeout(EVENT_PATIENCE_S):
            return await poll_until(
                lambda: asyncio.to_thread(_find, ledger_url, request_id),
                interval_s=_EVENT_POLL_INTERVAL_S,
            )
    except TimeoutError as exc:
        raise FleetFailed(
            f"request {request_id} is not in the ledger after {EVENT_PATIENCE_S:g} s"
        ) from exc


async def spool_booked(data_dir: DataDir, *, patience_s: float) -> None:
    """Returns then, or after ``patience_s``: what is left stays in the spool for the next start."""
    try:
        async with asyncio.timeout(patience_s):
            await poll_until(
                lambda: asyncio.to_thread(_booked, data_dir), interval_s=_SPOOL_POLL_INTERVAL_S
            )
    except (TimeoutError, LedgerUnavailable):
        return


def _booked(data_dir: DataDir) -> Literal[True] | None:
    segments = list(data_dir.spool.glob(f"*{SEGMENT_SUFFIX}"))
    ledger = Ledger(data_dir.ledger_url)
    try:
        return all(_is_read(ledger, segment) for segment in segments) or None
    finally:
        ledger.close()


def _is_read(ledger: Ledger, segment: Path) -> bool:
    size_bytes = segment.stat().st_size
    return size_bytes == 0 or ledger.next_offset(f"spool/{segment.name}") == size_bytes


def _find(ledger_url: str, request_id: str) -> PostedEvent | None:
    try:
        return find_event(ledger_url, request_id=request_id)
    except LedgerMissing:
        return None
