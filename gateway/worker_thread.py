"""Blocking calls beside the event loop, in a thread of their own."""

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")
_Call = tuple[Callable[[], Any], "Future[Any]"]


class WorkerThread:
    """Runs one call after the other, in order.

    A daemon, unlike the event loop's own threads: a disk that hangs delays no exit.
    """

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()  # None: the last
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def submit(self, call: Callable[[], T]) -> "Future[T]":
        future: Future[T] = Future()
        self._calls.put((call, future))
        return future

    async def call(self, call: Callable[[], T]) -> T:
        """The call's result, or what it raises.  Cancelled while it runs, it goes on unheard."""
        return await asyncio.wrap_future(self.submit(call))

    def stop(self) -> None:
        """After the calls that were submitted before.  Does not wait."""
        self._calls.put(None)

    def _run(self) -> None:
        while (item := self._calls.get()) is not None:
            call, future = item
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = call()
            except BaseException as exc:  # noqa: BLE001  # for whoever waits, not handled here
                future.set_exception(exc)
            else:
                future.set_result(result)
