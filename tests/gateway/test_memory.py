"""What the gateway keeps of a request while its answer streams."""

import asyncio
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from contracts.admission import AdmissionPolicy
from tests.gateway.processes import Policies, Valkey
from tests.gateway.scene import Scene, running
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
