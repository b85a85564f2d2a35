"""Exact routing over a real replica: what is believed to be cached is what the engine finds.

One process serves for two replicas: starting another would prove no more.

The answers say how they were routed, for clients that ask; so do the log and the metrics.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.app import Gateway, create_app
from gateway.settings import ReplicaAddress, Settings
from tests.gateway.processes import PEPPER, Policies, Valkey
from tests.gateway.scene import Scene, until
from tests.replica.replica_process import ReplicaProcess

BOUNDARY_TOKENS = 256  # of this vocabulary a token is a byte


@pytest.fixture(scope="module")
def replica(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicaProcess]:
    from tests.replica.tiny_hf import save_tiny_model  # transformers, which few need

    folder = tmp_path_factory.mktemp("exact")
    save_tiny_model(folder / "tiny", context_length=4096)
    settings = {"max_model_len": 4096, "kv_cache_bytes": 16 << 20, "num_threads": 1}
    with ReplicaProcess(folder / "log", model=folder / "tiny", **settings) as process:
        process.wait_ready()
        yield process


@dataclass
class Asked:
    replica: str
    reason: str
    believed: int  # tokens that the gateway took for cached
    found: int  # by the engine


@dataclass
class Fleet:
    gateway: Gateway
    scene: Scene
    lines: list[bytes]

    async def ask(self, prompt: str, *, explained: bool = True) -> Asked:
        self.scene.transport.written = b""
        extra = [(b"x-pandal-explain", b"1")] if explained else []
        exchange = self.scene.exchange(
            *extra,
            model="tiny",
            messages=[{"role": "user", "content": prompt}],
            max_tokens=4,
            stream=False,
        )
        self.gateway.pipeline.start(exchange)
        await until(lambda: exchange.response_complete)
        head, _, body = self.scene.transport.written.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), self.scene.transport.written
        usage = msgspec.json.decode(body)["usage"]
        told = re.search(rb"x-pandal-route: replica=(\S+); reason=(\w+);.* cached=(\d+)", head)
        assert (told is not None) == explained
        found = usage["prompt_tokens_details"]["cached_tokens"]
        if told is None:
            return Asked("", "", 0, found)
        return Asked(told[1].decode(), told[2].decode(), int(told[3]), found)


@pytest.fixture
async def fleet(
    replica: ReplicaProcess,
    tmp_path: Path,
    valkey: Valkey,
    policies: Policies,
    caplog: pytest.LogCaptureFixture,
) -> AsyncIterator[Fleet]:
    caplog.set_level("INFO", "gateway.access_log")  # else it writes no lines
    policies.add("exact", "sk-exact")
    lines: list[bytes] = []
    settings = Settings(
        replicas=tuple(ReplicaAddress(name=name, url=replica.url) for name in ("one", "other")),
        routing="exact",
        routing_explained=True,
        policy_file=policies.path,
        key_pepper=PEPPER,
        quota_url=valkey.url,
        quota_call_deadline_s=10.0,
        poll_interval_s=0.1,
        spool_dir=tmp_path / "spool",
    )
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(create_app(settings, lines.append))
        await until(lambda: not gateway.readiness.reasons_not_ready())
        yield Fleet(gateway, Scene(gateway, tmp_path / "spool", "exact", valkey), lines)


def prompt_of(beginning: str, num_bytes: int) -> str:
    return "".join(f"{beginning} {number:06d} " for number in range(num_bytes // 10))[:num_bytes]


async def ask_until(fleet: Fleet, prompt: str, is_right: Callable[[Asked], bool]) -> Asked:
    """Again and again: events come when they come."""
    for _ in range(400):
        asked = await fleet.ask(prompt)
        if is_right(asked):
            return asked
        await asyncio.sleep(0.05)
    raise AssertionError(f"never: the last was {asked}")


async def test_what_is_believed_to_be_cached_is_what_the_engine_finds(fleet: Fleet) -> None:
    prompt = prompt_of("ab", 1_500)
    first = await fleet.ask(prompt)
    assert (first.reason, first.found) == ("home", 0)
    asked = await ask_until(fleet, prompt + " and on", lambda a: a.reason == "cached")
    assert asked.found - BOUNDARY_TOKENS - 16 <= asked.believed <= asked.found


async def test_a_route_is_explained_to_those_who_ask_and_to_the_log(fleet: Fleet) -> None:
    asked = await fleet.ask(prompt_of("cd", 600))
    await fleet.ask(prompt_of("ef", 600), explained=False)
    await until(lambda: b"".join(fleet.lines).count(b"\n") == 2)
    lines = msgspec.json.Decoder(dict[str, Any]).decode_lines(b"".join(fleet.lines))
    assert lines[0]["replica"] == asked.replica
    assert lines[0]["route"] == asked.reason == "home"
    assert lines[0]["home"] == asked.replica
    assert lines[1]["route"] == "home"
