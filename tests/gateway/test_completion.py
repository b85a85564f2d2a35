"""Flows: carried on at once, by completions and by asyncio's futures, cancelled where they wait."""

import asyncio
import logging
import weakref

import pytest

from gateway.completion import Broadcast, Completion, Flow, in_task


def nothing(_: Flow) -> None:
    """For flows whose end nobody needs to hear of."""


def test_a_flow_goes_on_inside_the_call_that_completes_it() -> None:
    completion, seen = Completion[int](), []

    async def wait() -> None:
        seen.append(await completion)

    flow = Flow(wait(), seen.append)
    flow.start()
    assert seen == []
    completion.resolve(0)
    assert seen == [0, flow]
    assert flow.is_over


def test_the_first_outcome_stands() -> None:
    completion = Completion[int]()
    completion.fail(ValueError("first"))
    completion.resolve(2)
    with pytest.raises(ValueError, match="first"):
        completion.result()


async def test_a_task_may_wait_for_a_completion_and_be_cancelled() -> None:
    done, never = Completion[int](), Completion[int]()
    waiting = asyncio.create_task(asyncio.wait_for(done, 60))
    cancelled = asyncio.create_task(asyncio.wait_for(never, 60))
    await asyncio.sleep(0)
    done.resolve(7)
    cancelled.cancel()
    assert await waiting == 7
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    assert await asyncio.gather(done, done) == [7, 7]


async def test_a_broadcast_reaches_all_that_wait_and_all_that_come_later() -> None:
    broadcast, seen = Broadcast[int](), []

    async def wait() -> None:
        seen.append(await broadcast)

    task = asyncio.create_task(wait())
    for _ in range(2):
        Flow(wait(), nothing).start()
    await asyncio.sleep(0)
    broadcast.resolve(5)
    broadcast.resolve(6)
    assert seen == [5, 5], "the flows went on at once"
    await task
    await wait()
    assert seen == [5, 5, 5, 5]


async def test_each_that_waits_for_a_broadcast_gets_a_failure_of_its_own() -> None:
    broadcast, failures = Broadcast[int](), list[ValueError]()

    async def wait() -> None:
        try:
            await broadcast
        except ValueError as failure:
            failures.append(failure)

    for _ in range(2):
        Flow(wait(), nothing).start()
    broadcast.fail(lambda: ValueError("late"))
    await wait()
    assert len(set(map(id, failures))) == 3


async def test_a_flow_may_wait_for_a_task() -> None:
    results: list[int] = []

    async def later() -> int:
        async with asyncio.timeout(60):
            await asyncio.sleep(0)
        return 3

    async def wait() -> None:
        results.append(await in_task(later()))

    ended = asyncio.Event()
    Flow(wait(), lambda _: ended.set()).start()
    await asyncio.wait_for(ended.wait(), 60)
    assert results == [3]


async def test_a_cancelled_flow_cleans_up_at_once_and_takes_its_task_along() -> None:
    steps: list[str] = []

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            steps.append("task")

    async def wait() -> None:
        try:
            await in_task(forever())
        finally:
            steps.append("flow")

    flow = Flow(wait(), nothing)
    flow.start()
    await asyncio.sleep(0)
    flow.cancel()
    assert steps == ["flow"]
    flow.cancel()
    await asyncio.sleep(0.001)
    assert steps == ["flow", "task"]


def test_a_cancelled_flow_hears_nothing_of_what_it_waited_for() -> None:
    completion = Completion[None]()

    async def wait() -> None:
        await completion

    flow = Flow(wait(), nothing)
    flow.start()
    flow.cancel()
    completion.resolve(None)
    assert flow.is_over


def test_a_defect_in_one_flow_does_not_reach_who_completes_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    completion = Completion[None]()

    async def wait() -> None:
        await completion
        raise KeyError("a defect")

    with caplog.at_level(logging.ERROR):
        flow = Flow(wait(), nothing)
        flow.start()
        completion.resolve(None)
    assert flow.is_over
    assert caplog.messages == ["flow failed"]


async def test_a_broadcast_does_not_keep_who_has_left() -> None:
    broadcast, left = Broadcast[int](), list[weakref.ref[Completion[int]]]()
    stays = broadcast.waiting()
    for _ in range(1_000):
        leaver = broadcast.waiting()
        leaver.cancel()
        left.append(weakref.ref(leaver))
        del leaver
    assert sum(ref() is not None for ref in left) < 50
    broadcast.resolve(1)
    assert await stays == 1
