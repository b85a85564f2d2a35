"""Of many requests at once some begin in each turn of the event loop, in order."""

import asyncio

from gateway.api.context import Operation
from gateway.exchange import Exchange
from gateway.request_head import request_head
from gateway.slices import Slices
from tests.gateway.scene import RecordedTransport

HEAD = request_head(Operation.COMPLETIONS, [])
BEGINNING_S = 0.002  # takes each of them


class Begun:
    """On a clock that only beginnings move."""

    def __init__(self) -> None:
        self.now_s = 1.0
        self.exchanges: list[Exchange] = []
        self.slices = Slices(self._begin, lambda: self.now_s)

    def start(self, number: int) -> list[Exchange]:
        come = [Exchange(RecordedTransport(), HEAD, lambda: None) for _ in range(number)]
        for exchange in come:
            self.slices.start(exchange)
        return come

    def _begin(self, exchange: Exchange) -> None:
        self.exchanges.append(exchange)
        self.now_s += BEGINNING_S


async def test_what_fits_in_a_slice_begins_at_once() -> None:
    begun = Begun()
    assert begun.exchanges == begun.start(3)


async def test_the_rest_begins_in_the_next_turns_in_order() -> None:
    begun = Begun()
    come = begun.start(8)
    assert begun.exchanges == come[:3]
    come += begun.start(1)
    assert len(begun.exchanges) == 3, "behind those who wait"
    await asyncio.sleep(0)
    assert begun.exchanges == come[:6]
    await asyncio.sleep(0)
    assert begun.exchanges == come
    (late,) = begun.start(1)
    assert begun.exchanges == come, "the slice is over"
    await asyncio.sleep(0)
    assert begun.exchanges[-1] is late


async def test_who_waits_came_when_it_was_here_and_not_when_it_begins() -> None:
    begun = Begun()
    come = begun.start(5)
    assert [exchange.came_monotonic_s for exchange in come[2:]] == [1.004, 1.006, 1.006]
    begun.now_s += 0.5
    await asyncio.sleep(0)
    assert begun.exchanges == come
    assert come[-1].came_monotonic_s == 1.006


async def test_a_pause_ends_a_slice() -> None:
    begun = Begun()
    begun.start(3)
    begun.now_s += 0.002
    (late,) = begun.start(1)
    assert begun.exchanges[-1] is late
