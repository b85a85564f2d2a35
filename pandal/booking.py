"""Whether billing has booked: the demo's request, and all that a stopped gateway has written."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from billing.errors import LedgerMissing, LedgerUnavailable
from billing.ledger_database import LedgerRef, open_for_reading
from billing.lookup import PostedEvent, find_event, next_offset
from contracts.names import spool_source_id
from contracts.spool import SEGMENT_SUFFIX
from pandal.datadir import DataDir
from pandal.errors import FleetFailed
from pandal.polling import poll_until

_SPOOL_POLL_INTERVAL_S = 0.05
_EVENT_POLL_INTERVAL_S = 0.1
EVENT_PATIENCE_S = 30.0  # through the spool under a second; a Kafka group takes some to form


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
    """Returns then, or after ``patience_s``: what is left stays in the spool for the next start.

    The gateway is gone: no segment grows any more.
    """
    waiting = sorted(data_dir.spool.glob(f"*{SEGMENT_SUFFIX}"))

    async def all_booked() -> Literal[True] | None:
        nonlocal waiting
        waiting = await asyncio.to_thread(_not_booked, data_dir.ledger_url, waiting)
        return None if waiting else True

    try:
        async with asyncio.timeout(patience_s):
            await poll_until(all_booked, interval_s=_SPOOL_POLL_INTERVAL_S)
    except (TimeoutError, LedgerUnavailable):
        return


def _not_booked(ledger_url: str, segments: Sequence[Path]) -> list[Path]:
    written = [segment for segment in segments if _num_bytes(segment) > 0]
    if not written:
        return []
    try:
        ledger = open_for_reading(ledger_url)
    except LedgerMissing:
        return written  # billing is about to make it
    try:
        return [segment for segment in written if not _is_booked(ledger, segment)]
    except LedgerMissing:
        return written
    finally:
        ledger.dispose()


def _num_bytes(segment: Path) -> int:
    try:
        return segment.stat().st_size
    except FileNotFoundError:
        return 0  # billing removes what is booked


def _is_booked(ledger: LedgerRef, segment: Path) -> bool:
    """A torn last line, which a crash leaves behind, is nothing to wait for."""
    offset = next_offset(ledger, spool_source_id(segment.name))
    try:
        with segment.open("rb") as file:
            file.seek(0 if offset is None else offset)
            return not any(line.endswith(b"\n") for line in file)
    except FileNotFoundError:
        return True


def _find(ledger_url: str, request_id: str) -> PostedEvent | None:
    try:
        return find_event(ledger_url, request_id=request_id)
    except LedgerMissing:
        return None
