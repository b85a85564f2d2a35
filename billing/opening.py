"""Work before the first poll: an upgrade, and prices for what has waited, may take an hour.

Whoever is told to stop meanwhile does not wait for it: each transaction is whole or never was.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


async def done_or_stopped(work: Callable[[], T], stop: asyncio.Event) -> T | None:
    """What ``work`` returns or raises, or None once ``stop`` is set: then it ends with the process.

    Not in the loop's own threads, which are waited for at its end.
    """
    found: Future[T] = Future()
    threading.Thread(target=_run, args=(work, found), name="opening", daemon=True).start()
    waiting, stopping = asyncio.wrap_future(found), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((waiting, stopping), return_when=asyncio.FIRST_COMPLETED)
        return waiting.result() if waiting.done() else None
    finally:
        waiting.cancel()
        stopping.cancel()


def _run(work: Callable[[], T], found: Future[T]) -> None:
    found.set_running_or_notify_cancel()
    try:
        result = work()
    except BaseException as exc:  # noqa: BLE001 - raised again where it is waited for
        found.set_exception(exc)
    else:
        found.set_result(result)
