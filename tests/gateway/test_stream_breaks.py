"""A stream that a server breaks off is one break, whoever reads it; a client's fault is none."""

import asyncio
import json
import threading

import pytest

from contracts.response_cache import CachePolicy, HitCharge
from contracts.usage import Outcome
from tests.gateway.falling import SMALL, Fall, Falls
from tests.gateway.scene import until
from tests.gateway.upstream_server import Generation


def num_breaks(fall: Fall) -> int:
    log = fall.gateway.pipeline._stages.access_log
    log.tell()
    return log._metrics.num_breaks


async def test_readers_of_a_stream_that_breaks_add_no_breaks(falls: Falls) -> None:
    may_end = threading.Event()

    async def break_off(generation: Generation) -> None:
        await generation.start_stream()
        await generation.word()
        while not may_end.is_set():  # noqa: ASYNC110 - set in another thread
            await asyncio.sleep(0.005)
        generation.writer.close()

    async with falls(SMALL, cache=CachePolicy(hit_charge=HitCharge.FULL)) as fall:
        fall.upstream.behaviour, fall.upstream.knows_abort = break_off, False
        pipeline = fall.gateway.pipeline
        try:
            for _ in range(3):
                pipeline.start(fall.scene.exchange(temperature=0, stream=True))
            await until(lambda: pipeline._stages.cache.num_shared == 2)
            await until(lambda: bool(fall.upstream.generations))
        finally:
            may_end.set()
        await pipeline.until_idle()
        events = fall.scene.events()
        assert [event.outcome for event in events] == [Outcome.UPSTREAM_FAILED] * 3
        assert num_breaks(fall) == 1


@pytest.mark.parametrize(("code", "expected"), [(400, 0), (500, 1)])
async def test_an_error_that_tells_of_the_request_is_no_break(
    falls: Falls, code: int, expected: int
) -> None:
    async def fail(generation: Generation) -> None:
        await generation.start_stream()
        await generation.word()
        await generation.event({"error": {"message": "No.", "code": code}})
        generation.writer.close()

    async with falls(SMALL) as fall:
        fall.upstream.behaviour, fall.upstream.knows_abort = fail, False
        fallen = await fall.ask(stream=True)
        await fall.gateway.pipeline.until_idle()
        assert num_breaks(fall) == expected
    assert "error" in json.loads(fallen.payloads[-1])
    assert fallen.events[0].outcome is Outcome.UPSTREAM_FAILED
