"""Waiting for a state of another process, which has no way to call back."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


async def poll_until(probe: Callable[[], Awaitable[T | None]], *, interval_s: float) -> T:
    """The first result that is not None.  The caller sets the deadline."""
    while True:
        result = await probe()
        if result is not None:
            return result
        await asyncio.sleep(interval_s)
