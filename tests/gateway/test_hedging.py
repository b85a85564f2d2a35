"""A stream that is slow to begin is asked for elsewhere as well: one answer, one bill."""

import asyncio
import logging
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from contracts.hedging import HedgePolicy
from contracts.names import HEADER_LOCALLY_ADMITTED
from contracts.usage import Outcome, UsageEvent
from gateway.admission.redis_limiter import RedisLimiter
from gateway.app import Gateway
from gateway.resilience.hedging import Hedging
from gateway.resilience.retry_budget import RetryBudget
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

    async def both_came(self) -> None:
        """One that is given up may else end before its server has read what was asked."""
        while len(self.generations) < 2:  # noqa: ASYNC110  # another thread's
            await asyncio.sleep(0.001)

    async def words_once_both_came(self, generation: Generation) -> None:
        await self.both_came()
        await words(NUM_WORDS)(generation)

    @property
    def num_in_flight(self) -> int:
        replicas = self.gateway.pipeline._stages.fleet.pool.replicas()
        return sum(each.num_in_flight for each in replicas)

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
        quota: Valkey = valkey,
        **settings: Any,
    ) -> AsyncIterator[Pair]:
        policies.add(tenant, f"sk-{tenant}", hedging=policy)
        replicas = upstream, other
        upstream.load = other.load = None if load is None else dict(load)
        addresses = [ReplicaAddress(name=f"r{n}", url=each.url) for n, each in enumerate(replicas)]
        async with running(
            tmp_path, quota, policies, replicas=tuple(addresses), **settings
        ) as gateway:
            await until(lambda: caplog.messages.count("replica ready") == 2)
            yield Pair(gateway, Scene(gateway, tmp_path / "spool", tenant, quota), replicas)

    return pair


async def silent(generation: Generation) -> None:
    await generation.is_stopped.wait()


async def broken(generation: Generation) -> None:
    generation.reset()


async def full(generation: Generation) -> None:
    await generation.answer(503, b"{}")


async def refused(generation: Generation, after_s: int) -> None:
    head = b"HTTP/1.1 503 X\r\nretry-after: %d\r\ncontent-length: 2\r\n\r\n" % after_s
    await generation.send(head + b"{}")


@pytest.mark.parametrize("load", [None, msgspec.to_builtins(LOAD)], ids=["foreign", "ours"])
async def test_the_second_begins_first(pairs: Pairs, load: Mapping[str, Any] | None) -> None:
    async with pairs(load=load) as pair:
        pair.behave(silent, pair.words_once_both_came)
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
        pair.behave(pair.words_once_both_came, silent)
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
        assert hedging._beginnings, "a slow beginning is learned, too"


@pytest.mark.parametrize("behaviour", [broken, full])
async def test_a_first_that_fails_leaves_it_to_the_second(
    pairs: Pairs, behaviour: Behaviour
) -> None:
    async with pairs() as pair:

        async def fail(generation: Generation) -> None:
            await pair.both_came()
            await behaviour(generation)

        async def late(generation: Generation) -> None:
            while pair.num_in_flight > 1:  # noqa: ASYNC110  # as above
                await asyncio.sleep(0.001)
            assert pair.won_and_lost == (0, 0), "it has not begun"
            await words(NUM_WORDS)(generation)

        pair.behave(fail, late)
        event = await pair.ask()
        assert (event.outcome, event.attempt) == (Outcome.COMPLETED, 2)
        assert len(pair.generations) == 2
        assert pair.won_and_lost == (1, 0)


async def test_nothing_is_learned_of_a_first_that_neither_began_nor_was_given_up(
    pairs: Pairs,
) -> None:
    async with pairs() as pair:
        pair.behave(silent, full)
        exchange = pair.scene.exchange(stream=True)
        flow = pair.gateway.pipeline.start(exchange)
        hedging = pair.gateway.pipeline.retries.hedging
        await until(lambda: hedging.num_lost == 1)
        assert not hedging._beginnings
        exchange.client_lost()
        await until(lambda: flow.is_over)


async def test_a_slow_beginning_is_learned_where_there_was_no_second(pairs: Pairs) -> None:
    """Or what is learned could only fall, and be undercut by more and more."""
    async with pairs(AT_ONCE, retry_budget_ratio=0.0) as pair:

        async def slow(generation: Generation) -> None:
            await generation.pause(0.05)
            await words(NUM_WORDS)(generation)

        pair.behave(slow, slow)
        await pair.ask()
        (learned,) = pair.gateway.pipeline.retries.hedging._beginnings.values()
        assert learned.guess(0) > 0.04


async def test_what_a_failed_loser_asked_for_is_known(pairs: Pairs) -> None:
    """The least that the replicas asked for is what the client reads."""
    async with pairs(max_retries=0) as pair:

        async def first(generation: Generation) -> None:
            await pair.both_came()
            await refused(generation, 3)

        async def second(generation: Generation) -> None:
            while pair.num_in_flight > 1:  # noqa: ASYNC110  # as above
                await asyncio.sleep(0.001)
            await refused(generation, 7)

        pair.behave(first, second)
        await pair.gateway.pipeline.serve(pair.scene.exchange(stream=True))
        assert b"retry-after: 3\r\n" in pair.scene.transport.written


async def test_both_are_told_that_the_quota_store_was_away(
    pairs: Pairs, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "quota").mkdir()
    quota = Valkey(tmp_path / "quota")
    quota.start()
    try:
        async with pairs(quota=quota) as pair:
            pair.behave(words(NUM_WORDS), words(NUM_WORDS))
            await pair.ask(stream=False)  # of which there is no second that could come late
            limiter = pair.gateway.pipeline._stages.limiter
            assert isinstance(limiter, RedisLimiter)
            await until(lambda: limiter._shares.is_any_leased(time.monotonic()))
            await asyncio.to_thread(quota.stop, signal.SIGKILL)
            await until(lambda: "quota store not usable" in caplog.messages)
            for replica in pair.replicas:
                replica.generations.clear()
            pair.behave(silent, pair.words_once_both_came)
            await pair.gateway.pipeline.serve(pair.scene.exchange(stream=True))
            told = [HEADER_LOCALLY_ADMITTED in each.received.headers for each in pair.generations]
            assert told == [True, True]
            quota.start()  # a gateway waits with its end until it is told
    finally:
        quota.stop()


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


async def test_a_second_attempt_takes_nothing_from_what_failures_need(pairs: Pairs) -> None:
    async with pairs() as pair:
        pair.behave(silent, words(NUM_WORDS))
        await pair.ask(stream=True)
        assert pair.won_and_lost == (1, 0)
        assert pair.gateway.pipeline.retries.budget.num_withdrawn == 0


def test_how_long_is_too_long_is_learned() -> None:
    hedging = Hedging(RetryBudget(0.2))
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
