"""Blocking calls beside the event loop."""

import asyncio
import threading

import pytest

from gateway.worker_thread import WorkerThread


async def test_calls_run_in_order_in_one_named_thread() -> None:
    worker = WorkerThread("a-worker")
    order: list[int] = []
    await asyncio.gather(*(worker.call(lambda n=n: order.append(n)) for n in range(20)))  # type: ignore[misc]
    assert order == list(range(20))
    thread = await worker.call(threading.current_thread)
    assert (thread.name, thread.daemon) == ("a-worker", True)
    worker.stop()
    await asyncio.to_thread(thread.join)


async def test_what_a_call_raises_reaches_its_caller() -> None:
    worker = WorkerThread("a-worker")
    with pytest.raises(KeyError, match="absent"):
        await worker.call(lambda: {}["absent"])
    assert await worker.call(lambda: 1) == 1, "the thread lives on"
    worker.stop()


async def test_a_cancelled_wait_leaves_the_call_and_later_ones_alone() -> None:
    worker = WorkerThread("a-worker")
    has_begun, may_end, has_ended = (threading.Event() for _ in range(3))

    def slow() -> None:
        has_begun.set()
        may_end.wait(60)
        has_ended.set()

    running = asyncio.create_task(worker.call(slow))
    await asyncio.to_thread(has_begun.wait, 20)
    waiting = asyncio.create_task(worker.call(lambda: pytest.fail("was cancelled before its turn")))
    await asyncio.sleep(0)
    for task in (running, waiting):
        task.cancel()
    await asyncio.gather(running, waiting, return_exceptions=True)
    may_end.set()
    assert await worker.call(has_ended.is_set)
    worker.stop()
