"""An ``Idempotency-Key`` holds in all gateways that share a store: one answer, one charge."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from contracts.idempotency import KeyAnswer, KeyClaim
from contracts.usage import Outcome, UsageEvent
from gateway.app import Gateway
from gateway.completion import Flow
from gateway.exchange import Exchange
from tests.gateway.processes import Policies, Valkey
from tests.gateway.scene import RecordedTransport, Scene, running, until
from tests.gateway.upstream_server import PROMPT_TOKENS, Generation, Upstream, words

KEY = (b"idempotency-key", b"k")
NUM_WORDS = 3


@dataclass(frozen=True)
class Asked:
    """A client's request to one of the gateways."""

    flow: Flow
    exchange: Exchange
    transport: RecordedTransport

    async def written(self) -> bytes:
        await until(lambda: self.flow.is_over)
        return self.transport.written

    async def status(self) -> int:
        return int((await self.written()).split(b" ")[1])


def body_of(written: bytes) -> bytes:
    return written.partition(b"\r\n\r\n")[2]


@dataclass(frozen=True)
class Both:
    gateways: tuple[Gateway, Gateway]
    folder: Path
    tenant: str
    valkey: Valkey

    def ask(self, number: int, **members: object) -> Asked:
        """One of the two, under the key."""
        scene = self._scene(number)
        exchange = scene.exchange(KEY, **members)
        return Asked(scene.gateway.pipeline.start(exchange), exchange, scene.transport)

    def check_one_charge(self) -> None:
        (event,) = self.events()
        num_tokens = PROMPT_TOKENS + NUM_WORDS
        assert (event.outcome, event.total_tokens) == (Outcome.COMPLETED, num_tokens)
        assert self.valkey.settled(self.tenant) == {"requests": 1, "tokens": num_tokens}

    def events(self) -> list[UsageEvent]:
        return [event for number in range(2) for event in self._scene(number).events()]

    def keys(self) -> list[bytes]:
        with self.valkey.client as client:
            return [bytes(key) for key in client.keys(f"{{{self.tenant}}}:idempotency:*")]

    def _scene(self, number: int) -> Scene:
        spool = self.folder / str(number) / "spool"
        return Scene(self.gateways[number], spool, self.tenant, self.valkey)


@asynccontextmanager
async def both_of(
    folder: Path, valkey: Valkey, policies: Policies, upstream: Upstream, store: Valkey
) -> AsyncIterator[Both]:
    tenant = f"keys-{abs(hash(folder)) % 10**9}"
    policies.add(tenant, f"sk-{tenant}")
    gateways = []
    async with AsyncExitStack() as stack:
        for number in range(2):
            (folder / str(number)).mkdir()
            gateway = running(
                folder / str(number),
                valkey,
                policies,
                upstream,
                gateway_id=f"g{number}",
                cache_url=store.url,
                idempotency_call_deadline_s=5.0,  # this machine may be busy with other tests
            )
            gateways.append(await stack.enter_async_context(gateway))
        yield Both((gateways[0], gateways[1]), folder, tenant, valkey)


@pytest.fixture
async def both(
    tmp_path: Path,
    valkey: Valkey,
    policies: Policies,
    upstream: Upstream,
    caplog: pytest.LogCaptureFixture,
) -> AsyncIterator[Both]:
    caplog.set_level(logging.INFO)
    async with both_of(tmp_path, valkey, policies, upstream, valkey) as both:
        await until(lambda: caplog.messages.count("store of idempotency keys connected") == 2)
        yield both


@dataclass
class Held:
    """A behaviour that ends when it is told to."""

    may_end: bool = False

    async def __call__(self, generation: Generation) -> None:
        while not self.may_end:  # noqa: ASYNC110  # set by another thread
            await asyncio.sleep(0.001)
        await words(NUM_WORDS)(generation)


@pytest.fixture
def held(upstream: Upstream) -> Iterator[Held]:
    upstream.behaviour = held = Held()
    yield held
    held.may_end = True


async def refuse(generation: Generation) -> None:
    await generation.answer(400, b'{"error": {"message": "no"}}')


@pytest.mark.parametrize("is_stream", [True, False], ids=["stream", "whole"])
async def test_an_answer_of_one_is_repeated_by_the_other(
    both: Both, upstream: Upstream, is_stream: bool
) -> None:
    first = await both.ask(0, stream=is_stream).written()
    again = await both.ask(1, stream=is_stream).written()
    assert body_of(again) == body_of(first)
    assert b"idempotent-replayed: true" in again
    assert b"idempotent-replayed" not in first
    assert len(upstream.generations) == 1
    both.check_one_charge()


async def test_the_other_repeats_an_answer_a_hundred_times(both: Both, upstream: Upstream) -> None:
    assert await both.ask(0).status() == 200
    assert {await both.ask(1).status() for _ in range(100)} == {200}
    refused = await both.ask(1).written()
    assert refused.startswith(b"HTTP/1.1 409")
    assert b"x-should-retry: false" in refused
    assert len(upstream.generations) == 1


@pytest.mark.parametrize("is_stream", [True, False], ids=["stream", "whole"])
async def test_an_answer_on_its_way_at_one_is_waited_for_at_the_other(
    both: Both, upstream: Upstream, held: Held, is_stream: bool
) -> None:
    asked = [both.ask(number, stream=is_stream) for number in (0, 1, 1, 0)]
    await until(lambda: len(upstream.generations) == 1)
    held.may_end = True
    written = [await each.written() for each in asked]
    assert {each.split(b" ")[1] for each in written} == {b"200"}
    assert sum(b"idempotent-replayed" in each for each in written) == 3
    assert len(upstream.generations) == 1
    both.check_one_charge()


async def test_a_client_that_leaves_is_not_waited_with(
    both: Both, upstream: Upstream, held: Held
) -> None:
    first = both.ask(0)
    await until(lambda: len(upstream.generations) == 1)
    second = both.ask(1)
    second.exchange.client_lost()
    assert await second.written() == b""
    held.may_end = True
    assert await first.status() == 200
    both.check_one_charge()


async def test_another_body_is_refused_by_both(both: Both, upstream: Upstream, held: Held) -> None:
    first = both.ask(0)
    await until(lambda: len(upstream.generations) == 1)
    assert await both.ask(1, temperature=1).status() == 422
    held.may_end = True
    assert await first.status() == 200
    assert [await both.ask(number, temperature=1).status() for number in (0, 1)] == [422, 422]
    both.check_one_charge()


async def test_what_failed_at_one_may_be_tried_at_the_other(both: Both, upstream: Upstream) -> None:
    upstream.behaviour = refuse
    assert await both.ask(0).status() == 400
    upstream.behaviour = words(NUM_WORDS)
    assert await both.ask(1).status() == 200


async def test_a_dead_gateways_claim_ends(both: Both, upstream: Upstream) -> None:
    assert await both.ask(0).status() == 200
    await until(lambda: len(both.keys()) == 1)
    (name,) = both.keys()
    with both.valkey.client as client:
        kept = msgspec.msgpack.decode(client.get(name), type=KeyAnswer)
        claim = KeyClaim(body_digest=kept.body_digest, holder="a dead gateway")
        client.set(name, msgspec.msgpack.encode(claim), px=300)
    assert await both.ask(1).status() == 200
    assert len(upstream.generations) == 2


async def test_an_answer_that_is_too_large_to_be_shared_is_said_to_be(
    both: Both, upstream: Upstream
) -> None:
    upstream.behaviour = words(250_000)
    assert [await both.ask(number).status() for number in (0, 1, 0)] == [200, 409, 200]
    assert len(upstream.generations) == 1


async def test_without_the_store_each_gateway_keeps_its_own_and_says_so(
    tmp_path: Path,
    valkey: Valkey,
    policies: Policies,
    upstream: Upstream,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    (tmp_path / "store").mkdir()
    store = Valkey(tmp_path / "store")
    store.start()
    async with both_of(tmp_path, valkey, policies, upstream, store) as both:
        await until(lambda: caplog.messages.count("store of idempotency keys connected") == 2)
        store.stop()
        await until(lambda: caplog.messages.count("store of idempotency keys not usable") == 2)
        assert [await both.ask(number).status() for number in (0, 1, 0, 1)] == [200] * 4
        assert len(upstream.generations) == 2, "one each"
    told = {getattr(record, "error", None) for record in caplog.records}
    assert "each gateway keeps its own until it is back" in told
