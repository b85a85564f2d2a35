"""A stream that is slow to begin is asked for elsewhere as well: one answer, one bill."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from contracts.hedging import HedgePolicy
from contracts.usage import Outcome, UsageEvent
from gateway.app import Gateway
from gateway.resilience.hedging import Hedging
from gateway.settings import ReplicaAddress
from tests.gateway.fleets import LOAD
from tests.gateway.processes import Policies, Valkey
from tests.gateway.scene import Scene, running, until
from tests.gateway.upstream_server import PROMPT_TOKENS, Behaviour, Generation, Upstream, words

AT_ONCE = HedgePolicy(after_ms=1)
NUM_WORDS = 3


@dataclass(frozen=True)
class Pair:
    """A gateway before two replicas."""

    gateway: Gateway
    scene: Scene
    replicas: tuple[Upstream, Upstream]

    def behave(self, first: Behaviour, second: Behaviour) -> None:
        """The first that is asked, and the second."""
        behaviours = {0: first, 1: second}

        async def behave(generation: Generation) -> None:
            await behaviours[_number(generation)](generation)

        for replica in self.replicas:
            replica.behaviour = behave

    async def ask(self, **members: object) -> UsageEvent:
        await self.gateway.pipeline.serve(self.scene.exchange(**{"stream": True, **members}))
        return await self.scene.only_event()

    @property
    def generations(self) -> list[Generation]:
        """In the order in which they were asked for."""
        found = [generation for replica in self.replicas for generation in replica.generations]
        return sorted(found, key=_number)

    @property
    def won_and_lost(self) -> tuple[int, int]:
        hedging = self.gateway.pipeline.retries.hedging
        return hedging.num_won, hedging.num_lost


def _number(generation: Generation) -> int:
    return int(generation.received.headers["x-request-id"].rpartition("-")[2])


@pytest.fixture(scope="module")
def other() -> Iterator[Upstream]:
    other = Upstream()
    other.start()
    yield other
    other.stop()


Pairs = Callable[..., AbstractAsyncContextManager[Pair]]


@pytest.fixture
def pairs(
    tmp_path: Path,
    valkey: Valkey,
    policies: Policies,
    upstream: Upstream,
    other: Upstream,
    caplog: pytest.LogCaptureFixture,
) -> Pairs:
    other.reset()
    caplog.set_level(logging.INFO)
    tenant = f"hedge-{abs(hash(tmp_path)) % 10**9}"

    @asynccontextmanager
    async def pair(
        policy: HedgePolicy | None = AT_ONCE,
        load: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> AsyncIterator[Pair]:
        policies.add(tenant, f"sk-{tenant}", hedging=policy)
        replicas = upstream, other
        upstream.load = other.load = None if load is None else dict(load)
        addresses = [ReplicaAddress(name=f"r{n}", url=each.url) for n, each in enumerate(replicas)]
        async with running(
            tmp_path, valkey, policies, replicas=tuple(addresses), **settings
        ) as gateway:
            await until(lambda: caplog.messages.count("replica ready") == 2)
            yield Pair(gateway, Scene(gateway, tmp_path / "spool", tenant, valkey), replicas)

    return pair


async def silent(generation: Generation) -> None:
    await generation.is_stopped.wait()


async def broken(generation: Generation) -> None:
    generation.reset()


async def full(generation: Generation) -> None:
    await generation.answer(503, b"{}")


@pytest.mark.parametrize("load", [None, msgspec.to_builtins(LOAD)], ids=["foreign", "ours"])
async def test_the_second_begins_first(pairs: Pairs, load: Mapping[str, Any] | None) -> None:
    async with pairs(load=load) as pair:
        pair.behave(silent, words(NUM_WORDS))
        event = await pair.ask()
        first, second = pair.generations
        await until(first.is_stopped.is_set)
        assert first.received.body == second.received.body, "the same seed, where there is one"
        assert pair.scene.transport.written.count(b"word") == NUM_WORDS
        assert (event.outcome, event.attempt) == (Outcome.COMPLETED, 2)
        assert event.total_tokens == PROMPT_TOKENS + NUM_WORDS
        assert pair.won_and_lost == (1, 0)


async def test_the_first_begins_first_after_all(pairs: Pairs) -> None:
    async with pairs() as pair:

        async def late(generation: Generation) -> None:
            while len(pair.generations) < 2:  # noqa: ASYNC110  # another thread's
                await asyncio.sleep(0.001)
            await words(NUM_WORDS)(generation)

        pair.behave(late, silent)
        event = await pair.ask()
        await until(pair.generations[1].is_stopped.is_set)
        assert (event.outcome, event.attempt) == (Outcome.COMPLETED, 1)
        assert event.total_tokens == PROMPT_TOKENS + NUM_WORDS
        assert pair.won_and_lost == (0, 1)


@pytest.mark.parametrize("behaviour", [broken, full])
async def test_a_second_that_fails_leaves_the_first_to_it(
    pairs: Pairs, behaviour: Behaviour
) -> None:
    async with pairs() as pair:
        hedging = pair.gateway.pipeline.retries.hedging

        async def late(generation: Generation) -> None:
            while not hedging.num_lost:  # noqa: ASYNC110  # another thread's
                await asyncio.sleep(0.001)
            await words(NUM_WORDS)(generation)

        pair.behave(late, behaviour)
        event = await pair.ask()
        assert (event.outcome, event.attempt) == (Outcome.COMPLETED, 1)
        assert len(pair.generations) == 2


@pytest.mark.parametrize("behaviour", [broken, full])
async def test_a_first_that_fails_leaves_it_to_the_second(
    pairs: Pairs, behaviour: Behaviour
) -> None:
    async with pairs() as pair:

        async def fail(generation: Generation) -> None:
            while len(pair.generations) < 2:  # noqa: ASYNC110  # another thread's
                await asyncio.sleep(0.001)
            await behaviour(generation)

        async def late(generation: Generation) -> None:
            hedging = pair.gateway.pipeline.retries.hedging
            while not hedging.num_won:  # noqa: ASYNC110  # another thread's
                await asyncio.sleep(0.001)
            await words(NUM_WORDS)(generation)

        pair.behave(fail, late)
        event = await pair.ask()
        assert (event.outcome, event.attempt) == (Outcome.COMPLETED, 2)
        assert len(pair.generations) == 2


async def test_a_client_that_leaves_ends_both_and_pays_for_one(pairs: Pairs) -> None:
    async with pairs() as pair:
        pair.behave(silent, silent)
        exchange = pair.scene.exchange(stream=True)
        flow = pair.gateway.pipeline.start(exchange)
        await until(lambda: len(pair.generations) == 2)
        exchange.client_lost()
        await until(lambda: flow.is_over)
        await until(lambda: all(g.is_stopped.is_set() for g in pair.generations))
        event = await pair.scene.only_event()
        assert (event.outcome, event.attempt) == (Outcome.CLIENT_DISCONNECTED, 1)
        assert event.total_tokens == PROMPT_TOKENS


@pytest.mark.parametrize(
    ("policy", "is_stream", "ratio"),
    [(None, True, 0.2), (AT_ONCE, False, 0.2), (AT_ONCE, True, 0.0), (HedgePolicy(), True, 0.2)],
    ids=["no-policy", "no-stream", "no-budget", "nothing-known"],
)
async def test_there_is_no_second(
    pairs: Pairs, policy: HedgePolicy | None, is_stream: bool, ratio: float
) -> None:
    async with pairs(policy, retry_budget_ratio=ratio) as pair:

        async def slow(generation: Generation) -> None:
            await generation.pause(0.05)
            await words(NUM_WORDS)(generation)

        pair.behave(slow, slow)
        event = await pair.ask(stream=is_stream)
        assert len(pair.generations) == 1
        assert event.total_tokens == PROMPT_TOKENS + NUM_WORDS
        assert pair.won_and_lost == (0, 0)


def test_how_long_is_too_long_is_learned() -> None:
    hedging = Hedging()
    for number in range(19):
        hedging.began("m", 0.1 + number / 1e3)
        assert hedging.after_s(HedgePolicy(), "m") is None
    for number in range(2_000):
        hedging.began("m", 0.1 if number % 50 else 3.0)
    learned_s = hedging.after_s(HedgePolicy(), "m")
    assert learned_s is not None
    assert 0.08 < learned_s < 0.2
    assert hedging.after_s(HedgePolicy(after_ms=7), "m") == 0.007
    assert hedging.after_s(HedgePolicy(), "other") is None
