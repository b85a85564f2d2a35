"""Ctrl-C ends a run and what is in flight; what has been measured stays."""

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, NoReturn


async def until_interrupted(
    work: Coroutine[Any, Any, None],  # Any: what a coroutine is not sent
    watch: Coroutine[Any, Any, NoReturn],
) -> bool:
    """Whether the work was cut short; ``watch`` goes on as long as it does."""
    loop, asked = asyncio.get_running_loop(), asyncio.Event()
    working, watching = asyncio.ensure_future(work), asyncio.ensure_future(watch)
    interrupted = asyncio.ensure_future(asked.wait())
    loop.add_signal_handler(signal.SIGINT, asked.set)
    try:
        await asyncio.wait({working, interrupted}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        is_cut = not working.done()
        for task in (working, watching, interrupted):
            task.cancel()
        await asyncio.gather(working, watching, interrupted, return_exceptions=True)
    if not is_cut:
        working.result()
    return is_cut
