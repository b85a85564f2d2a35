"""Two electors over one lease: never both act, whatever is slow, lost or asleep."""

import asyncio
import logging
import random
from contextlib import suppress
from datetime import UTC, datetime
from itertools import pairwise

import pytest

from autoscaler.errors import BadPolicy, ClusterRefused, StaleWrite
from autoscaler.kubernetes.lease import Clocks, Elector, LeaseTimings
from autoscaler.kubernetes.objects import Lease, LeaseSpec, Metadata

TIMINGS = LeaseTimings()


class MemoryLease:
    """An API server's habits: versions, and answers that come late, are lost, or are refused."""

    def __init__(self, seed: int = 0, trouble: float = 0.0) -> None:
        self._chance = random.Random(seed)
        self._trouble = trouble
        self.lease: Lease | None = None
        self._version = 0

    async def read(self) -> Lease | None:
        await self._travel()
        found = self.lease
        await self._travel()
        return found

    async def create(self, spec: LeaseSpec) -> None:
        await self._travel()
        if self.lease is not None:
            raise StaleWrite("exists")
        self._store(spec)
        await self._travel()

    async def replace(self, known: Lease, spec: LeaseSpec) -> None:
        await self._travel()
        if self.lease is None or self.lease.metadata != known.metadata:
            raise StaleWrite("changed")
        self._store(spec)
        await self._travel()

    def _store(self, spec: LeaseSpec) -> None:
        self._version += 1
        self.lease = Lease(metadata=Metadata(resource_version=str(self._version)), spec=spec)

    async def _travel(self) -> None:
        if self._chance.random() < self._trouble:
            if self._chance.random() < 0.5:
                raise ClusterRefused("unreachable")
            await asyncio.sleep(self._chance.uniform(0, 6))
        await asyncio.sleep(0.001)


def elector(store: MemoryLease, name: str, seed: int = 0) -> Elector:
    return Elector(
        store,
        name,
        TIMINGS,
        clocks=Clocks(asyncio.get_running_loop().time, lambda: datetime.now(UTC)),
        random=random.Random(seed).random,
    )


@pytest.mark.looptime
async def test_the_first_leads_and_the_second_waits_out_a_sudden_death() -> None:
    store = MemoryLease()
    first, second = elector(store, "a"), elector(store, "b")
    await first.attempt()
    assert first.may_act()
    for _ in range(7):
        await asyncio.sleep(2.0)
        await second.attempt()
        assert not second.may_act()
    assert not first.may_act(), "it has not renewed, and has stopped by itself"
    await asyncio.sleep(3.0)
    await second.attempt()
    assert second.may_act()
    await first.attempt()
    assert not first.may_act()


@pytest.mark.looptime
async def test_who_resigns_is_followed_at_once() -> None:
    store = MemoryLease()
    first, second = elector(store, "a"), elector(store, "b")
    await first.attempt()
    await first.resign()
    assert not first.may_act()
    await second.attempt()
    assert second.may_act()
    assert store.lease is not None
    assert store.lease.spec.lease_transitions == 2


@pytest.mark.looptime
async def test_a_term_has_a_name_of_its_own() -> None:
    store = MemoryLease()
    first = elector(store, "a")
    await first.attempt()
    token = first.token
    await asyncio.sleep(5.0)
    await first.attempt()
    assert first.token == token
    await first.resign()
    await first.attempt()
    assert first.token != token


@pytest.mark.looptime
async def test_an_expired_lease_that_nobody_took_is_renewed_under_the_same_name() -> None:
    store = MemoryLease()
    first = elector(store, "a")
    await first.attempt()
    token = first.token
    await asyncio.sleep(60.0)
    assert not first.may_act()
    await first.attempt()
    assert first.may_act()
    assert first.token == token


class LosesAnswers(MemoryLease):
    """What is written is written, and who wrote it does not hear of it."""

    is_lossy = False

    async def replace(self, known: Lease, spec: LeaseSpec) -> None:
        await super().replace(known, spec)
        if self.is_lossy:
            raise ClusterRefused("no answer in time")


@pytest.mark.looptime
@pytest.mark.parametrize("is_lossy", [False, True], ids=["answered", "answer-lost"])
async def test_a_lease_that_was_taken_resigned_and_taken_back_is_a_new_term(
    is_lossy: bool,
) -> None:
    store = LosesAnswers()
    first, second = elector(store, "a"), elector(store, "b")
    await first.attempt()
    token = first.token
    assert not await _takes(second)
    await asyncio.sleep(16.0)
    assert await _takes(second)
    await second.resign()
    store.is_lossy = is_lossy
    with suppress(ClusterRefused):
        await first.attempt()
    store.is_lossy = False
    await first.attempt()
    assert first.may_act()
    assert first.token != token, "the notebook has another's name under the old one"


async def _takes(candidate: Elector) -> bool:
    await candidate.attempt()
    return candidate.may_act()


@pytest.mark.looptime
@pytest.mark.parametrize("seed", range(8))
async def test_two_never_both_act(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    """A write that begins while ``may_act`` ends before the other may begin one."""
    caplog.set_level(logging.ERROR)
    store = MemoryLease(seed, trouble=0.25)
    chance = random.Random(seed)
    loop = asyncio.get_running_loop()
    writes: list[tuple[float, float, str]] = []

    async def live(name: str) -> None:
        mine = elector(store, name, seed)

        async def act() -> None:
            while True:
                if mine.may_act():
                    begun_s = loop.time()
                    await asyncio.sleep(chance.uniform(0, TIMINGS.request_timeout_s))
                    writes.append((begun_s, loop.time(), name))
                await asyncio.sleep(0.5)

        async def sleep(duration_s: float) -> None:
            asleep_s = chance.uniform(0, 40) if chance.random() < 0.1 else 0.0
            await asyncio.sleep(duration_s + asleep_s)  # the whole elector stands still

        async with asyncio.TaskGroup() as group:
            group.create_task(act())
            group.create_task(mine.run(sleep))

    both = asyncio.gather(live("a"), live("b"))
    await asyncio.wait([both], timeout=300)
    both.cancel()
    with pytest.raises(asyncio.CancelledError):
        await both
    for (_, ended_s, before), (begun_s, _, after) in pairwise(sorted(writes)):
        assert before == after or ended_s <= begun_s
    assert len({name for _, _, name in writes}) == 2, "both have had their turn"


class Broken(MemoryLease):
    """Fails once as nothing that is foreseen does."""

    is_broken = True

    async def read(self) -> Lease | None:
        if self.is_broken:
            self.is_broken = False
            raise ValueError("a defect")
        return await super().read()


@pytest.mark.looptime
async def test_what_nobody_foresaw_is_logged_and_does_not_end_the_election(
    caplog: pytest.LogCaptureFixture,
) -> None:
    mine = elector(Broken(), "a")
    with suppress(TimeoutError):
        async with asyncio.timeout(5.0):
            await mine.run(asyncio.sleep)
    assert mine.may_act()
    assert caplog.records[0].exc_info is not None


def test_timings_that_would_let_two_act_are_refused() -> None:
    with pytest.raises(BadPolicy, match="renew_deadline_s"):
        LeaseTimings(duration_s=10.0, renew_deadline_s=8.0, request_timeout_s=2.0)
    with pytest.raises(BadPolicy, match="retry_period_s"):
        LeaseTimings(retry_period_s=9.0)
