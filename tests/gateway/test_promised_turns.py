"""Who waits as told, where replicas are busy: promises by themselves, then before a busy fleet."""

import asyncio
import itertools
import math
import random
from dataclasses import dataclass

import pytest

from contracts.admission import AdmissionPolicy
from gateway.admission.promised_turns import GRACE_S, PromisedTurns
from tests.gateway.virtual_fleet import VirtualFleet

IN_TIME = AdmissionPolicy(ttft_target_ms=1_500)


def line_of(num_a_second: int, now_s: float = 100.0) -> PromisedTurns:
    """Of a tenant that was let in so often lately."""
    line = PromisedTurns()
    for number in range(num_a_second * 40):
        line.let_in(-1, now_s - 40.0 + number / num_a_second)
    return line


def test_nobody_is_told_the_same_time() -> None:
    line = line_of(5)
    waits_s = [line.promise_s(turn, 0.5, 100.0) for turn in range(20)]
    gaps_s = [later - sooner for sooner, later in itertools.pairwise(waits_s)]
    assert waits_s[0] == 0.5
    assert gaps_s[0] == pytest.approx(0.2, rel=0.05)
    assert gaps_s[-1] == pytest.approx(0.5, rel=0.05), "the rest is for who comes anew"


def test_a_turn_comes_once_and_not_before_its_time() -> None:
    line = line_of(5)
    wait_s = line.promise_s(7, 2.0, 100.0)
    assert not line.claim(7, 100.0 + wait_s / 2)
    assert line.promise_s(7, 0.5, 101.0) == pytest.approx(wait_s - 1.0)
    assert line.claim(7, 100.0 + wait_s)
    assert not line.claim(7, 100.0 + wait_s)


def test_who_does_not_come_is_forgotten() -> None:
    line = line_of(5)
    wait_s = line.promise_s(7, 2.0, 100.0)
    assert not line.claim(7, 100.0 + wait_s + GRACE_S)
    assert len(line) == 0


def test_who_comes_too_late_is_the_last_again_and_keeps_nobody_in_line() -> None:
    line = line_of(5)
    late_s, lapsed_s = (100.0 + line.promise_s(turn, 2.0, 100.0) for turn in (1, 2))
    line.promise_s(1, 2.0, late_s + 1.0)
    assert not line.claim(2, lapsed_s + GRACE_S)
    assert len(line) == 1


def test_who_is_let_in_before_its_time_is_in_line_no_more() -> None:
    line = line_of(5)
    wait_s = line.promise_s(7, 2.0, 100.0)
    line.let_in(7, 101.0)
    assert len(line) == 0
    assert not line.claim(7, 100.0 + wait_s)


def test_no_more_than_a_minute_is_promised() -> None:
    line = line_of(5)
    waits_s = [line.promise_s(turn, 0.5, 100.0) for turn in range(500)]
    assert max(waits_s) < 61.0
    assert len(line) < 130


@dataclass
class Tally:
    num_admitted: int = 0
    num_attempts: int = 0
    num_returns: int = 0  # attempts after a wait
    num_returns_admitted: int = 0


async def keep_asking(
    fleet: VirtualFleet, tally: Tally, source: random.Random, think_s: float
) -> None:
    """Waits exactly Retry-After when refused, and thinks before the next ask."""
    while True:
        await asyncio.sleep(source.expovariate(1 / think_s))
        turn, is_return, is_admitted = source.getrandbits(32), False, False
        while not is_admitted:
            visit = fleet.ask("honest", IN_TIME, source.randrange(55, 85), 8, turn)
            await visit.end
            is_admitted = visit.retry_after_ms is None
            tally.num_attempts += 1
            tally.num_admitted += is_admitted
            tally.num_returns += is_return
            tally.num_returns_admitted += is_return and is_admitted
            if visit.retry_after_ms is not None:
                await asyncio.sleep(math.ceil(visit.retry_after_ms / 1e3) + source.uniform(0, 0.02))
            is_return = True


@pytest.mark.looptime
@pytest.mark.parametrize("think_s", [4.0, 1.0], ids=["somewhat-more", "much-more"])
async def test_of_more_than_the_replicas_can_take_who_waits_as_told_gets_in(think_s: float) -> None:
    fleet, tally = VirtualFleet(), Tally()
    async with asyncio.TaskGroup() as group:
        clients = [
            group.create_task(keep_asking(fleet, tally, random.Random(number), think_s))
            for number in range(50)
        ]
        await asyncio.sleep(100.0)
        for client in clients:
            client.cancel()
    assert tally.num_returns_admitted >= 0.95 * tally.num_returns >= 50
    assert tally.num_attempts < 1.5 * tally.num_admitted
