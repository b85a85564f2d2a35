"""What the gateway keeps of a request while its answer streams."""

import asyncio
import gc
import tracemalloc
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from contracts.admission import AdmissionPolicy
from gateway.completion import Completion, Flow
from tests.gateway.processes import Policies, Valkey
from tests.gateway.scene import Scene, running, until
from tests.gateway.upstream_server import Upstream, words
from tests.support.waiting import eventually

BODY_BYTES = 1_000_000


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


def holders_of_a_body() -> list[str]:
    """Where blocks were allocated that may be one; the upstream's own, in its streams, aside."""
    traces = tracemalloc.take_snapshot().traces
    large = [trace.traceback[0] for trace in traces if trace.size >= BODY_BYTES]
    return [f"{f.filename}:{f.lineno}" for f in large if "/asyncio/" not in f.filename]


@pytest.fixture
def uncollected() -> Iterator[None]:
    """What is let go must end at once: a garbage collection may be thousands of requests away."""
    gc.disable()
    yield
    gc.enable()


async def test_a_failure_that_was_raised_is_let_go(uncollected: None) -> None:
    completion: Completion[None] = Completion()
    completion.fail(ValueError())
    seen = weakref.ref(completion)
    with pytest.raises(ValueError):  # noqa: PT011
        await completion
    del completion
    assert seen() is None


async def ended(flow: Flow) -> None:
    await until(lambda: flow.is_over)


async def test_a_request_whose_client_left_is_let_go(
    tmp_path: Path, valkey: Valkey, policies: Policies, upstream: Upstream, uncollected: None
) -> None:
    policies.add("gone", "sk-gone")
    upstream.behaviour = words(1_000, pause_s=0.01)
    async with running(tmp_path, valkey, policies, upstream) as gateway:
        scene = Scene(gateway, tmp_path / "spool", "gone", valkey)
        exchange = scene.exchange(stream=True)
        seen = weakref.ref(exchange)
        flow = gateway.pipeline.start(exchange)
        await until(lambda: b"word" in scene.transport.written)
        exchange.client_lost()
        await ended(flow)
        del exchange, flow
        await until(lambda: seen() is None)


async def test_no_copy_of_the_body_outlives_the_answers_first_byte(
    tmp_path: Path, valkey: Valkey, policies: Policies, upstream: Upstream, traced: None
) -> None:
    policies.add(
        "large",
        "sk-large",
        admission=AdmissionPolicy(max_prompt_tokens=2 * BODY_BYTES),
        tokens_per_minute=2 * BODY_BYTES,
    )
    upstream.behaviour = words(1_000, pause_s=0.01)
    async with running(tmp_path, valkey, policies, upstream) as gateway:
        scene = Scene(gateway, tmp_path / "spool", "large", valkey)
        exchange = scene.exchange(content="x" * BODY_BYTES, stream=True)
        assert holders_of_a_body()
        task = asyncio.create_task(gateway.pipeline.serve(exchange))
        await asyncio.to_thread(
            eventually, lambda: b"word" in scene.transport.written, "the first byte"
        )
        assert holders_of_a_body() == []
        exchange.client_lost()
        await task
