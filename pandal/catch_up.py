"""Whether billing has booked all that a stopped gateway has written."""

import asyncio
from pathlib import Path
from typing import Literal

from billing.errors import LedgerUnavailable
from billing.ledger import Ledger
from contracts.spool import SEGMENT_SUFFIX
from pandal.datadir import DataDir
from pandal.polling import poll_until

_POLL_INTERVAL_S = 0.05


async def spool_booked(data_dir: DataDir, *, patience_s: float) -> None:
    """Returns then, or after ``patience_s``: what is left stays in the spool for the next start."""
    try:
        async with asyncio.timeout(patience_s):
            await poll_until(
                lambda: asyncio.to_thread(_booked, data_dir), interval_s=_POLL_INTERVAL_S
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
